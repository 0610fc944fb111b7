"""Judges of two versions: the gates that rollouts have, a rule that compares rates with a threshold, and Kayenta's test."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from control_plane.rollout.domain.gate import Gate
from perf.rollout_gates.worlds import Tick

GATES, THRESHOLD, KAYENTA = "gates", "threshold rule", "Kayenta"
JUDGES = (GATES, THRESHOLD, KAYENTA)

Floats = npt.NDArray[np.float64]

LEAST_SAMPLES = 50
TIMES = 2.0
"""The rule is the usual one of a canary analysis: from so many requests on, fail one whose rate is above so many times the
present version's."""
LEAST_POINTS = 50
"""Points in time of each metric that Kayenta's documentation asks for (best practices: "at least 50 pieces of time series data")."""
POINTS_PER_ANALYSIS = 10
_TOLERANCE = 0.25
"""Part of the estimated shift that the interval has to be beyond (`NetflixACAJudge`: tolerance 0.25, confidence 0.98)."""
_Z = 2.3263
"""Quantile of the normal distribution for a two-sided confidence of 98 %."""
_CHUNK = 16
"""Samples of the canary in a block, as a gateway would close it within a tick."""


class Judge(Protocol):
    """A judge that looks after each tick."""

    canary: int
    """Requests of the canary so far."""

    def looks(self, tick: Tick) -> bool:
        """Whether the canary is worse, after this tick as well."""


class Gates:
    """The gates of `control_plane/rollout`, one for each rate, with alpha split over them; each unit counts once."""

    def __init__(self, count: int, *, alpha: float) -> None:
        self.canary = 0
        self._gates = [Gate() for _ in range(count)]
        self._alpha = alpha / count
        self._seen: set[int] = set()

    def looks(self, tick: Tick) -> bool:
        self.canary += int(tick.is_canary.sum())
        first = slice(None) if tick.is_distinct else self._firsts(tick)
        arms = tick.is_canary[first]
        for gate, bad in zip(self._gates, tick.bad, strict=True):
            canary_bad, stable_bad = bad[first][arms], bad[first][~arms]
            parts = min(len(canary_bad), len(stable_bad)) // _CHUNK
            blocks = zip(np.array_split(canary_bad, parts), np.array_split(stable_bad, parts), strict=True) if parts > 1 else ()
            for canary_part, stable_part in blocks or ((canary_bad, stable_bad),):
                if len(canary_part) and len(stable_part):
                    gate.add_block(len(canary_part), int(canary_part.sum()), len(stable_part), int(stable_part.sum()))
        return any(gate.has_failed(self._alpha) for gate in self._gates)

    def _firsts(self, tick: Tick) -> list[int]:
        """Return where units stand that have not been seen before."""
        firsts = []
        for place, unit in enumerate(tick.units.tolist()):
            if unit not in self._seen:
                self._seen.add(unit)
                firsts.append(place)
        return firsts


class ThresholdRule:
    """Rule by which a canary fails whose rate is above a multiple of the present version's."""

    def __init__(self, count: int) -> None:
        self.canary = self._stable = 0
        self._bad = [[0, 0] for _ in range(count)]

    def looks(self, tick: Tick) -> bool:
        arms = tick.is_canary
        self.canary += int(arms.sum())
        self._stable += int((~arms).sum())
        for sums, bad in zip(self._bad, tick.bad, strict=True):
            sums[0] += int(bad[arms].sum())
            sums[1] += int(bad[~arms].sum())
        if self.canary < LEAST_SAMPLES or not self._stable:
            return False
        return any(of_canary / self.canary > TIMES * of_stable / self._stable for of_canary, of_stable in self._bad)


class Kayenta:
    """Kayenta's judge with its defaults: a Mann-Whitney U test of two time series for each rate.

    A tick is a point of each series, and the baseline has as many requests as the canary, as its documentation advises. It
    looks at all points so far, after every ten from the fiftieth on; a single rate that is high takes the score of three
    below its usual 75.
    """

    def __init__(self, count: int) -> None:
        self.canary = 0
        self._points: list[tuple[list[float], list[float]]] = [([], []) for _ in range(count)]

    def looks(self, tick: Tick) -> bool:
        arms = tick.is_canary
        of_canary, of_stable = np.flatnonzero(arms), np.flatnonzero(~arms)
        self.canary += len(of_canary)
        paired = min(len(of_canary), len(of_stable))
        if paired:  # a point without requests is no data
            for (canary, baseline), bad in zip(self._points, tick.bad, strict=True):
                canary.append(float(bad[of_canary].mean()))
                baseline.append(float(bad[of_stable[:paired]].mean()))
        points = len(self._points[0][0])
        is_due = bool(paired) and points >= LEAST_POINTS and points % POINTS_PER_ANALYSIS == 0
        return is_due and any(is_high(np.array(canary), np.array(baseline)) for canary, baseline in self._points)


def is_high(canary: Floats, baseline: Floats) -> bool:
    """Whether Kayenta's classifier calls a metric high: the confidence interval of the shift (Hodges-Lehmann, by the normal
    approximation of the Mann-Whitney U test) lies above a quarter of the shift.
    """
    differences = np.sort(np.subtract.outer(canary, baseline), axis=None)
    pairs, points = len(differences), len(canary) + len(baseline)
    rank = int(pairs / 2 - _Z * math.sqrt(pairs * (points + 1) / 12))
    return rank >= 1 and bool(differences[rank - 1] > _TOLERANCE * abs(np.median(differences)))


def make_judge(name: str, count: int, *, alpha: float) -> Judge:
    """Make the judge of that name, for so many rates."""
    if name == GATES:
        return Gates(count, alpha=alpha)
    return ThresholdRule(count) if name == THRESHOLD else Kayenta(count)
