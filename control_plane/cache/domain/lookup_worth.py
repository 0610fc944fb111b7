"""Load shedding for a shared cache: whether a lookup is worth its latency, and how long to wait for it.

A lookup costs its caller the cache's latency, and saves the time of computing if it hits. Both times are
measured on this process's own event loop, including its delays: so the comparison is fair on a slow or busy
host too.

Pure; called by `cache/adapters/lookup_shedder`.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_KEPT = 9
"""Durations in the running median: few, so that it follows a change within some lookups."""

_ALWAYS_WORTH = 0.2
"""Share of the computing time that a lookup may always cost. It may cost more where the hit ratio is higher:
a lookup then pays on average as long as its latency is less than hit ratio times computing time.
"""
_MIN_PATIENCE_S = 0.002
"""Shortest wait for an answer: an event loop is now and then late by this much all by itself."""
_USUAL_TIMES = 2.0
"""An answer that is later than this many median latencies is not likely to come soon."""
_HITS_REMEMBERED = 32.0
"""Time constant of the hit ratio's moving average, in keys: after so many, older lookups weigh about a third
(1/e).
"""


class RunningMedian:
    """Running median of the last nine durations, which single outliers do not move."""

    def __init__(self) -> None:
        self._last_s: deque[float] = deque(maxlen=_KEPT)
        self.median_s = 0.0
        """The median in seconds; 0.0 before the first duration was added."""

    def add(self, took_s: float) -> None:
        self._last_s.append(took_s)
        self.median_s = median(self._last_s)


class LookupPolicy:
    """Running estimate of a shared cache's latency and hit ratio, and the waiting time that follows from
    them.
    """

    def __init__(self) -> None:
        self._answers = RunningMedian()
        self.hit_ratio = 1.0
        """Moving average, from 0 to 1. It starts at 1: a new process takes the cache to be full until lookups
        show otherwise.
        """

    @property
    def answer_s(self) -> float:
        """Median latency of a lookup in seconds; 0.0 while nothing was measured."""
        return self._answers.median_s

    def answered(self, took_s: float, *, hits: int = 0, keys: int = 0) -> None:
        """Record an answer: its latency, the number of `keys` that were asked for and how many of them hit.

        A probe with a key that no caller wants passes no `keys`: it tells the latency and nothing about the
        hit ratio.
        """
        self._answers.add(took_s)
        if keys:
            self.hit_ratio += keys / (keys + _HITS_REMEMBERED - 1) * (hits / keys - self.hit_ratio)

    def forget_latencies(self) -> None:
        """Forget the latencies, after a reconnect that may have led to another server; the hit ratio
        stays.
        """
        self._answers = RunningMedian()

    def patience_s(self, computing_s: float) -> float | None:
        """Return how long a caller should wait who would otherwise compute for `computing_s`; None: it should
        not ask at all.
        """
        if self.answer_s > max(_ALWAYS_WORTH, self.hit_ratio) * computing_s:
            return None
        # Never longer than computing takes, which the caller could have started instead.
        wanted_s = max(_ALWAYS_WORTH * computing_s, _USUAL_TIMES * self.answer_s)
        return max(min(wanted_s, computing_s), _MIN_PATIENCE_S)
