"""What is remembered of keys whose answers are no longer kept, in 8 bytes each, for `KeptAnswers`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from control_plane.cache.domain.eviction.reuse_rates import AGES, ROWS

SAMPLE = 8
"""Looked at for each answer that is offered."""

_LAST_USE = 2**32 - 1


class Forgotten:
    """A ghost list: of keys that are no longer kept, when and how they were used; a newer one in the same slot takes its place.

    A slot is 0 or, from its low bits on: 1, 4 bits of uses, 6 of the interval's octave, 32 of the last use, 21 of the key.
    """

    def __init__(self, slots: int) -> None:
        self._slots = array("Q", bytes(8 * max(1, slots)))

    def __len__(self) -> int:
        return len(self._slots)

    def put(self, key: bytes, last_use: int, uses: int, interval: int) -> None:
        slot, tag = self._place(key)
        self._slots[slot] = tag << 43 | (last_use & _LAST_USE) << 11 | interval.bit_length() << 5 | uses << 1 | 1

    def pop(self, key: bytes, now: int) -> tuple[int, int, int, int] | None:
        """Its row, age, uses and interval."""
        slot, tag = self._place(key)
        found = self._slots[slot]
        if not found or found >> 43 != tag:
            return None
        self._slots[slot] = 0
        return _unpacked(found, now)

    def some(self, draw: Callable[[], float], now: int) -> Iterator[tuple[int, int]]:
        """The row and age of what lies in a few slots, by chance."""
        for _ in range(SAMPLE):
            if found := self._slots[int(draw() * len(self._slots))]:
                row, age, _, _ = _unpacked(found, now)
                yield row, age

    def _place(self, key: bytes) -> tuple[int, int]:
        """Keys are digests: any of their bits will do."""
        number = int.from_bytes(key[:8], "little")
        return number % len(self._slots), number >> 43


def _unpacked(found: int, now: int) -> tuple[int, int, int, int]:
    uses, octave = found >> 1 & 15, found >> 5 & 63
    interval = 3 << octave >> 2  # the middle of the octave
    return ROWS[uses] + octave * AGES, (now - (found >> 11)) & _LAST_USE, uses, interval
