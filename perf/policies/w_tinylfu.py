"""W-TinyLFU (Einziger, Friedman and Manes 2017), its window's size found by climbing (Einziger et al. 2018)."""

from __future__ import annotations

from array import array

from perf.policies.sized_queue import SizedQueue

_PROTECTED_PART = 0.8
_FIRST_WINDOW_PART = 0.01
_STEP_PART, _STEP_DECAY = 0.0625, 0.98
_RESTART_AT = 0.05
_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)


class _Sketch:
    """How often keys were used, about: four rows of counters up to 15, halved after ten uses for each entry."""

    def __init__(self, entries: int) -> None:
        self._bits = max(6, (4 * entries).bit_length())
        self._rows = [array("B", bytes(1 << self._bits)) for _ in _ODD]
        self._added = 0
        self._most = 10 * max(entries, 16)

    def add(self, key: int) -> None:
        for row, place in self._places(key):
            if row[place] < 15:
                row[place] += 1
        self._added += 1
        if self._added >= self._most:
            self._rows = [array("B", (count >> 1 for count in row)) for row in self._rows]
            self._added //= 2

    def of(self, key: int) -> int:
        return min(row[place] for row, place in self._places(key))

    def _places(self, key: int) -> list[tuple[array[int], int]]:
        return [(row, (((key + 1) * odd) & (2**64 - 1)) >> (64 - self._bits)) for row, odd in zip(self._rows, _ODD, strict=True)]


class WTinyLfu:
    def __init__(self, room: int, entries: int) -> None:
        self._room = room
        self._window, self._probation, self._protected = SizedQueue(), SizedQueue(), SizedQueue()
        self._sketch = _Sketch(entries)
        self._window_room = _FIRST_WINDOW_PART * room
        self._step = _STEP_PART * room
        self._period = 10 * max(entries, 16)
        self._uses = self._hits = 0
        self._last_rate = 0.0

    def use(self, key: int, size: int, cost: float) -> bool:
        self._sketch.add(key)
        is_hit = self._find(key)
        self._hits += is_hit
        if not is_hit and size <= self._room:
            self._window.add(key, size)
            self._settle()
        self._uses += 1
        if self._uses >= self._period:
            self._climb()
        return is_hit

    def _find(self, key: int) -> bool:
        for queue in (self._window, self._protected):
            if key in queue:
                queue.move_to_end(key)
                return True
        if key not in self._probation:
            return False
        self._protected.add(key, self._probation.drop(key))
        self._demote()
        return True

    def _demote(self) -> None:
        while self._protected.held > _PROTECTED_PART * (self._room - self._window_room) and len(self._protected) > 1:
            oldest = self._protected.oldest()
            self._probation.add(oldest, self._protected.drop(oldest))

    def _settle(self) -> None:
        while self._window.held > self._window_room and len(self._window) > (self._window_room > 0):
            candidate = self._window.oldest()
            self._probation.add(candidate, self._window.drop(candidate))
            self._make_room(candidate)
        self._make_room(None)

    def _make_room(self, candidate: int | None) -> None:
        """At the expense of the candidate, unless it was used more often than who would go for it."""
        while self._window.held + self._probation.held + self._protected.held > self._room:
            queue = next(queue for queue in (self._probation, self._protected, self._window) if queue)
            victim = queue.oldest()
            if candidate in self._probation and victim != candidate and self._sketch.of(candidate) <= self._sketch.of(victim):
                self._probation.drop(candidate)
            else:
                queue.drop(victim)

    def _climb(self) -> None:
        rate = self._hits / self._uses
        if rate < self._last_rate:
            self._step = -self._step
        if abs(rate - self._last_rate) >= _RESTART_AT:
            self._step = (1 if self._step >= 0 else -1) * _STEP_PART * self._room
        self._window_room = min(max(self._window_room + self._step, 0.0), 0.8 * self._room)
        self._step *= _STEP_DECAY
        self._last_rate, self._uses, self._hits = rate, 0, 0
        self._demote()
        self._settle()
