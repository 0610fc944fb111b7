"""S3-FIFO (Yang et al. 2023) and SIEVE (Zhang et al. 2024)."""

from __future__ import annotations

from collections import OrderedDict, deque

_SMALL_PART = 10
_MOST_USES = 3


class S3Fifo:
    def __init__(self, room: int, entries: int) -> None:
        self._room = room
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._small_held = self._held = 0
        self._kept: dict[int, list[int]] = {}
        """Size and uses."""
        self._ghosts: OrderedDict[int, int] = OrderedDict()
        self._ghosts_held = 0

    def use(self, key: int, size: int, cost: float) -> bool:
        kept = self._kept.get(key)
        if kept is not None:
            kept[1] = min(_MOST_USES, kept[1] + 1)
            return True
        if size > self._room:
            return False
        while self._held + size > self._room:
            self._evict()
        self._held += size
        self._kept[key] = [size, 0]
        if key in self._ghosts:
            self._ghosts_held -= self._ghosts.pop(key)
            self._main.append(key)
        else:
            self._small.append(key)
            self._small_held += size
        return False

    def _evict(self) -> None:
        if self._small and (self._small_held * _SMALL_PART >= self._room or not self._main):
            self._evict_small()
        else:
            self._evict_main()

    def _evict_small(self) -> None:
        key = self._small.popleft()
        size, uses = self._kept[key]
        self._small_held -= size
        if uses > 1:
            self._kept[key][1] = 0
            self._main.append(key)
            return
        self._held -= self._kept.pop(key)[0]
        self._ghosts[key] = size
        self._ghosts_held += size
        while self._ghosts_held > self._room:
            self._ghosts_held -= self._ghosts.popitem(last=False)[1]

    def _evict_main(self) -> None:
        key = self._main.popleft()
        if self._kept[key][1]:
            self._kept[key][1] -= 1
            self._main.append(key)
        else:
            self._held -= self._kept.pop(key)[0]


class Sieve:
    def __init__(self, room: int, entries: int) -> None:
        self._room = room
        self._held = 0
        self._sizes: dict[int, int] = {}
        self._visited: dict[int, bool] = {}
        self._newer: dict[int, int | None] = {}
        self._older: dict[int, int | None] = {}
        self._head: int | None = None
        self._tail: int | None = None
        self._hand: int | None = None

    def use(self, key: int, size: int, cost: float) -> bool:
        if key in self._sizes:
            self._visited[key] = True
            return True
        if size > self._room:
            return False
        while self._held + size > self._room:
            self._evict()
        self._held += size
        self._sizes[key] = size
        self._visited[key] = False
        self._newer[key], self._older[key] = None, self._head
        if self._head is not None:
            self._newer[self._head] = key
        self._head = key
        if self._tail is None:
            self._tail = key
        return False

    def _evict(self) -> None:
        key = self._tail if self._hand is None else self._hand
        while key is not None and self._visited[key]:
            self._visited[key] = False
            key = self._newer[key]
            if key is None:
                key = self._tail
        assert key is not None, "no room is wanted where nothing is kept"
        newer, older = self._newer.pop(key), self._older.pop(key)
        self._hand = newer
        if newer is None:
            self._head = older
        else:
            self._older[newer] = older
        if older is None:
            self._tail = newer
        else:
            self._newer[older] = newer
        self._held -= self._sizes.pop(key)
        del self._visited[key]
