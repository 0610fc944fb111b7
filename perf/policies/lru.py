"""LRU, and GreedyDual-Size with Frequency (Cherkasova 1998)."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush


class Lru:
    def __init__(self, room: int, entries: int) -> None:
        self._room = room
        self._held = 0
        self._sizes: OrderedDict[int, int] = OrderedDict()

    def use(self, key: int, size: int, cost: float) -> bool:
        if key in self._sizes:
            self._sizes.move_to_end(key)
            return True
        if size <= self._room:
            self._sizes[key] = size
            self._held += size
            while self._held > self._room:
                self._held -= self._sizes.popitem(last=False)[1]
        return False


class GreedyDualSizeFrequency:
    """Keeps what has the largest frequency times cost by size, aged by the last victim's."""

    def __init__(self, room: int, entries: int) -> None:
        self._room = room
        self._held = 0
        self._age = 0.0
        self._kept: dict[int, tuple[float, int, int]] = {}
        """Rank, uses, size."""
        self._heap: list[tuple[float, int]] = []

    def use(self, key: int, size: int, cost: float) -> bool:
        kept = self._kept.get(key)
        uses = 1 if kept is None else kept[1] + 1
        if kept is None:
            if size > self._room:
                return False
            self._held += size
        rank = self._age + uses * cost / size
        self._kept[key] = rank, uses, size
        heappush(self._heap, (rank, key))
        while self._held > self._room:
            self._evict()
        return kept is not None

    def _evict(self) -> None:
        rank, key = heappop(self._heap)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == rank:
            self._age = rank
            self._held -= kept[2]
            del self._kept[key]
