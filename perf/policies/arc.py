"""ARC (Megiddo and Modha 2003), in bytes: once and again used, and what was evicted of each."""

from __future__ import annotations

from perf.policies.sized_queue import SizedQueue


class Arc:
    def __init__(self, room: int, entries: int) -> None:
        self._room = room
        self._once, self._again = SizedQueue(), SizedQueue()
        self._once_evicted, self._again_evicted = SizedQueue(), SizedQueue()
        self._once_room = 0.0

    def use(self, key: int, size: int, cost: float) -> bool:
        if key in self._again:
            self._again.move_to_end(key)
            return True
        if key in self._once:
            self._again.add(key, self._once.drop(key))
            return True
        if size <= self._room:
            self._offer(key, size)
        return False

    def _offer(self, key: int, size: int) -> None:
        once, again = self._once_evicted, self._again_evicted
        if key in once:
            self._once_room = min(self._room, self._once_room + size * max(1.0, again.held / once.held))
            once.drop(key)
            self._make_room(size, is_again=False)
            self._again.add(key, size)
        elif key in again:
            self._once_room = max(0.0, self._once_room - size * max(1.0, once.held / again.held))
            again.drop(key)
            self._make_room(size, is_again=True)
            self._again.add(key, size)
        else:
            self._make_room(size, is_again=False)
            self._once.add(key, size)
            while once and self._once.held + once.held > self._room:
                once.drop(once.oldest())
            while again and self._once.held + self._again.held + once.held + again.held > 2 * self._room:
                again.drop(again.oldest())

    def _make_room(self, size: int, *, is_again: bool) -> None:
        while self._once.held + self._again.held + size > self._room:
            once_held = self._once.held
            is_over = once_held > self._once_room or (is_again and once_held == self._once_room)
            kept, evicted = (
                (self._once, self._once_evicted) if self._once and (is_over or not self._again) else (self._again, self._again_evicted)
            )
            oldest = kept.oldest()
            evicted.add(oldest, kept.drop(oldest))
