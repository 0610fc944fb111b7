"""Learned reuse rates of the eviction policy `EvictingCache`: how soon entries are likely to be used again.

A rate is uses divided by waiting time, both counted by class of entries (a row: how often and at what
intervals they were used) and by octave of age (a factor of two in the time since the last use). The waiting
time of all entries is counted, not only of those that were used in the end (the estimator for censored
lifetimes): that makes the rates right from the start and after the traffic has changed. Time is logical,
counted in uses of any key.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

AGES = 40
"""Octaves of age and of interval: at 10,000 uses a second, 2**39 uses are more than a year."""
MAX_USES = 8
"""Uses are counted up to here; keys that were used more often are one class."""
_USES = MAX_USES.bit_length()
ROWS = [max(0, uses.bit_length() - 1) * AGES * AGES for uses in range(MAX_USES + 1)]
"""Where in the flat arrays the rates of each number of uses begin."""

_WIDTHS = 2.0 ** (np.arange(AGES) - 1)
_MIDDLES = 1.5 * _WIDTHS
_FIRST_RATE = 0.3
"""Prior: the rate at age t is 0.3 / t before anything was observed. It falls with age, which is what LRU
assumes.
"""
_REMEMBERED = 0.99
"""Share of the counts that survives each `learn`, so the last hundred or so periods make up the rates."""
_ONE_BELIEF, _HALF_BELIEF = 1.0, 0.5
"""Weight of the prior, in uses: so many must be observed before the observation weighs as much as the prior
does.
"""


def row_of(uses: int, interval: int) -> int:
    """Return the index at which the rates of entries with so many uses and such an interval begin."""
    return ROWS[uses] + interval.bit_length() * AGES


class ReuseRates:
    """Estimator of reuse rates, by uses (up to 1, 2-3, 4-7, 8 and more), octave of the interval and octave of
    the age.

    The counts are flat `array`s, not numpy's: a hit adds to one element, for which an `array` is the quicker
    one.
    """

    def __init__(self) -> None:
        size = _USES * AGES * AGES
        self.seen = array("d", bytes(8 * size))
        """Uses counted per class and age."""
        self.waited = array("d", bytes(8 * size))
        """Waiting time counted per class and age, whether it ended in a use or not."""
        self.start = array("d", bytes(8 * size))
        self.slope = array("d", bytes(8 * size))
        """Coefficients of the index: from the middle of one octave to that of the next it is start + slope * age."""
        nothing = np.zeros((1, 1, AGES))  # of one class, as the prior is the same for all
        self._take(_best_ratios(_rates(nothing, nothing)), AGES)

    def learn(self, uses: int) -> None:
        """Compute the indices from the counts, then let the counts fade; `uses` is the logical time
        so far.
        """
        octaves = uses.bit_length() + 1  # no age or interval can be longer than all of time
        seen, waited = (self._array(each, octaves) for each in (self.seen, self.waited))
        self._take(_best_ratios(_rates(seen, waited)), octaves)
        seen *= _REMEMBERED
        waited *= _REMEMBERED

    def _take(self, index: Any, octaves: int) -> None:
        start, slope = (self._array(each, octaves) for each in (self.start, self.slope))
        middles = _MIDDLES[:octaves]
        slope[..., 1:-1] = (index[..., 2:] - index[..., 1:-1]) / np.diff(middles[1:])
        start[...] = index - slope * middles
        start[..., 0] = index[..., 1]  # age 0 has no octave of its own

    @staticmethod
    def _array(numbers: array[float], octaves: int) -> Any:
        return np.frombuffer(numbers).reshape(_USES, AGES, AGES)[:, :octaves, :octaves]


def _rates(seen: Any, waited: Any) -> Any:
    """Return the rates `[uses, interval, age]`, smoothed hierarchically.

    A class with few observations is drawn to all classes of the same interval and age, and those to all of
    the same age.
    """
    middles = _MIDDLES[: seen.shape[-1]]
    everywhere = (seen.sum((0, 1)) + _ONE_BELIEF * _FIRST_RATE) / (waited.sum((0, 1)) + _ONE_BELIEF * middles)
    alike = (seen.sum(0) + _HALF_BELIEF) / (waited.sum(0) + _HALF_BELIEF / everywhere)
    return (seen + _HALF_BELIEF) / (waited + _HALF_BELIEF / alike)


def _best_ratios(rates: Any) -> Any:
    """Return the Gittins index for each age: the largest ratio, over all horizons, of the chance of a use to
    the expected time.

    Source: Gittins (1979). A horizon ends at an octave's end; an entry of the present age stands in the
    middle of its octave.
    """
    best = np.empty_like(rates)
    for age in range(octaves := rates.shape[-1]):
        widths = _WIDTHS[age:octaves].copy()
        widths[0] /= 2  # from the middle of the octave to its end
        expected = rates[..., age:] * widths
        used = np.exp(expected - np.cumsum(expected, axis=-1)) * -np.expm1(-expected)
        best[..., age] = (np.cumsum(used, axis=-1) / np.cumsum(used / rates[..., age:], axis=-1)).max(axis=-1)
    return best
