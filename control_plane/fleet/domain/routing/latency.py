"""Latency distribution of one kind of requests, of which some are known only to have taken longer than they were
waited for. `fleet/domain/routing/hedging` keeps one for each model and size class.

Latencies are counted in logarithmic buckets, which bounds the relative error of every quantile by half of a
bucket (DDSketch: Masson, Rim and Lee, VLDB 2019). A request that lost against its hedge is right-censored:
it took longer than it was waited for, and nobody knows how much. Left out, the tail that made hedging
worthwhile would be forgotten as soon as it is hedged; the product-limit estimator counts them for as long as
they were seen (Kaplan and Meier, 1958).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, log

_BUCKETS_RATIO = 1.1
_LOG_RATIO = log(_BUCKETS_RATIO)
_LEAST_S = 1e-6
"""Shorter latencies are this long: nothing is answered within a microsecond."""
_REMEMBERED = 2_000.0
"""Requests after which all counts are halved: what is older than about as many hardly counts, such as a model's slow
first requests. A tail of one request in a thousand still shows."""

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Survival:
    """Survival function of a latency distribution: the part of the requests that take longer than a time."""

    times_s: Sequence[float]
    """Ascending."""
    parts: Sequence[float]
    """For each time the part (0 to 1) that takes longer; descending."""

    def quantile_s(self, part: float) -> float:
        """The shortest known time within which this part (0 to 1) of the requests is answered; infinite if
        too few were seen to be answered."""
        found = bisect_left(self.parts, part - 1.0 - _ROUNDING, key=lambda each: -each)
        return self.times_s[found] if found < len(self.times_s) else inf

    @property
    def mean_s(self) -> float:
        """The mean, with who was censored beyond the last known time counted as answered then."""
        before_s, out, total_s = 0.0, 1.0, 0.0
        for time_s, part in zip(self.times_s, self.parts, strict=True):
            total_s += (time_s - before_s) * out
            before_s, out = time_s, part
        return total_s

    def after(self, time_s: float) -> float:
        """The part that takes longer than `time_s`, rounded up to its bucket's upper bound.

        Beyond the last known time nothing changes: who was censored there is still out.
        """
        found = bisect_right(self.times_s, _BUCKETS_RATIO ** _bucket(time_s))
        return self.parts[found - 1] if found else 1.0


class LatencyDistribution:
    """Histogram of latencies in logarithmic buckets, with right-censored ones, that forgets slowly."""

    __slots__ = ("_answered", "_censored", "count", "noted")

    def __init__(self) -> None:
        self.noted = 0
        """Requests ever counted."""
        self.count = 0.0
        """Requests that are remembered; older ones count in part."""
        self._answered: defaultdict[int, float] = defaultdict(float)
        self._censored: defaultdict[int, float] = defaultdict(float)

    def note_answer(self, took_s: float) -> None:
        """Count a request that was answered after `took_s`."""
        self._note(self._answered, took_s)

    def note_censored(self, waited_s: float) -> None:
        """Count a request that was not answered within `waited_s`, and was given up then."""
        self._note(self._censored, waited_s)

    def survival(self) -> Survival:
        """Estimate the survival function at the upper bounds of the buckets."""
        at_risk, part = self.count, 1.0
        times_s, parts = [], []
        for bucket in sorted({*self._answered, *self._censored}):
            answered = self._answered.get(bucket, 0.0)
            # Of those given up in a bucket all count as having been waited for to its end.
            part *= max(0.0, 1.0 - answered / at_risk) if at_risk > 0 else 1.0
            at_risk -= answered + self._censored.get(bucket, 0.0)
            times_s.append(_BUCKETS_RATIO**bucket)
            parts.append(part)
        return Survival(times_s, parts)

    def _note(self, counts: defaultdict[int, float], took_s: float) -> None:
        counts[_bucket(took_s)] += 1.0
        self.count += 1.0
        self.noted += 1
        if self.count > _REMEMBERED:
            self._forget_half()

    def _forget_half(self) -> None:
        for counts in (self._answered, self._censored):
            for bucket in list(counts):
                counts[bucket] /= 2
                if counts[bucket] < 1 / 64:  # so that the histogram does not grow for ever
                    del counts[bucket]
        self.count = sum(self._answered.values()) + sum(self._censored.values())


def _bucket(time_s: float) -> int:
    """The bucket of a time: bucket n ends at the n-th power of the ratio, which belongs to it."""
    return ceil(log(max(time_s, _LEAST_S)) / _LOG_RATIO - _ROUNDING)
