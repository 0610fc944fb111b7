"""Ghost entries of the eviction policy `EvictingCache`: the statistics of evicted keys, in 8 bytes each,
without their values.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from control_plane.cache.domain.eviction.reuse_rates import AGES, ROWS

SAMPLE = 8
"""Slots sampled for each put, to count how long ghosts wait unused."""

_LAST_USE = 2**32 - 1
"""Mask of the last use's bits: logical time wraps around at 2**32, and so do the ages that are computed from
it.
"""


class GhostList:
    """Ghost list: a hash table of fixed size with one ghost entry per slot; a newer ghost overwrites the one
    in its slot.

    A slot is 0 (empty) or, from the low bits up: a 1, 4 bits of uses, 6 bits of the interval's octave, 32
    bits of the last use and 21 bits of the key, which tell most keys of one slot apart.
    """

    def __init__(self, slots: int) -> None:
        self._slots = array("Q", bytes(8 * max(1, slots)))

    def __len__(self) -> int:
        return len(self._slots)

    def put(self, key: bytes, last_use: int, uses: int, interval: int) -> None:
        """Remember an evicted key's last use (logical time), uses and interval between uses."""
        slot, tag = self._place(key)
        self._slots[slot] = tag << 43 | (last_use & _LAST_USE) << 11 | interval.bit_length() << 5 | uses << 1 | 1

    def pop(self, key: bytes, now: int) -> tuple[int, int, int, int] | None:
        """Remove the ghost of `key` and return its row, age, uses and interval; None if there is none."""
        slot, tag = self._place(key)
        found = self._slots[slot]
        if not found or found >> 43 != tag:
            return None
        self._slots[slot] = 0
        return _unpacked(found, now)

    def some(self, draw: Callable[[], float], now: int) -> Iterator[tuple[int, int]]:
        """Yield the row and age of the ghosts in `SAMPLE` slots that `draw` chooses; empty slots yield
        nothing.
        """
        for _ in range(SAMPLE):
            if found := self._slots[int(draw() * len(self._slots))]:
                row, age, _, _ = _unpacked(found, now)
                yield row, age

    def _place(self, key: bytes) -> tuple[int, int]:
        """Return the slot of `key` and its tag; keys are digests, so any of their bits are as good as
        a hash.
        """
        number = int.from_bytes(key[:8], "little")
        return number % len(self._slots), number >> 43


def _unpacked(found: int, now: int) -> tuple[int, int, int, int]:
    uses, octave = found >> 1 & 15, found >> 5 & 63
    interval = 3 << octave >> 2  # the middle of the octave
    return ROWS[uses] + octave * AGES, (now - (found >> 11)) & _LAST_USE, uses, interval
