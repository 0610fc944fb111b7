"""How soon answers are asked for again, learned from uses and from waiting: the rates behind `KeptAnswers`.

A rate is uses by time, both counted for keys that are alike in how often and at what intervals they were used (a row), and for
each octave of the time since. Counting the time of all that wait, not only of what was used in the end, is what makes the
rates right from the start and after a change. Time is counted in uses of anything.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

AGES = 40
"""Octaves: 2**39 uses of anything without one of a certain key are more than a year of 10,000 a second."""
MOST_USES = 8
_USES = MOST_USES.bit_length()
ROWS = [max(0, uses.bit_length() - 1) * AGES * AGES for uses in range(MOST_USES + 1)]

_WIDTHS = 2.0 ** (np.arange(AGES) - 1)
_MIDDLES = 1.5 * _WIDTHS
_FIRST_RATE = 0.3
"""By age, where nothing was seen yet: the older, the less likely, which is what LRU believes."""
_REMEMBERED = 0.99
"""Of what was seen, each time that it learns: what counts is about the last hundred times."""
_ONE_BELIEF, _HALF_BELIEF = 1.0, 0.5
"""Uses that have to be seen to weigh as much as what is known from those alike."""


def row_of(uses: int, interval: int) -> int:
    """Where the rates of those used so often and at such intervals begin."""
    return ROWS[uses] + interval.bit_length() * AGES


class ReuseRates:
    """By uses (none or one, 2, 4, 8 and more), octave of the interval between them, and octave of age."""

    def __init__(self) -> None:
        size = _USES * AGES * AGES
        self.seen = array("d", bytes(8 * size))
        """Uses, of such as these."""
        self.waited = array("d", bytes(8 * size))
        """Time that such as these spent, used in the end or not."""
        self.start = array("d", bytes(8 * size))
        self.slope = array("d", bytes(8 * size))
        """The index from the middle of an octave to that of the next is start + slope * age."""
        self.learn(2 ** (AGES - 2))

    def learn(self, uses: int) -> None:
        """Find the indices anew from what was seen, which from now on counts for less; so far there were `uses` of anything."""
        octaves = uses.bit_length() + 1  # and no age or interval beyond
        seen, waited, start, slope = (self._array(each, octaves) for each in (self.seen, self.waited, self.start, self.slope))
        index = _best_ratios(_rates(seen, waited))
        middles = _MIDDLES[:octaves]
        slope[..., 1:-1] = (index[..., 2:] - index[..., 1:-1]) / np.diff(middles[1:])
        start[...] = index - slope * middles
        start[..., 0] = index[..., 1]
        seen *= _REMEMBERED
        waited *= _REMEMBERED

    @staticmethod
    def _array(numbers: array[float], octaves: int) -> Any:
        return np.frombuffer(numbers).reshape(_USES, AGES, AGES)[:, :octaves, :octaves]


def _rates(seen: Any, waited: Any) -> Any:
    """Where few were seen: drawn to those of the same interval, and these to all of the same age."""
    middles = _MIDDLES[: seen.shape[-1]]
    everywhere = (seen.sum((0, 1)) + _ONE_BELIEF * _FIRST_RATE) / (waited.sum((0, 1)) + _ONE_BELIEF * middles)
    alike = (seen.sum(0) + _HALF_BELIEF) / (waited.sum(0) + _HALF_BELIEF / everywhere)
    return (seen + _HALF_BELIEF) / (waited + _HALF_BELIEF / alike)


def _best_ratios(rates: Any) -> Any:
    """For each age the largest of chance of a use by expected time, over every horizon from its octave's middle on."""
    best = np.empty_like(rates)
    for age in range(octaves := rates.shape[-1]):
        widths = _WIDTHS[age:octaves].copy()
        widths[0] /= 2
        expected = rates[..., age:] * widths
        used = np.exp(expected - np.cumsum(expected, axis=-1)) * -np.expm1(-expected)
        best[..., age] = (np.cumsum(used, axis=-1) / np.cumsum(used / rates[..., age:], axis=-1)).max(axis=-1)
    return best
