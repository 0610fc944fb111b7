"""Durations counted by bucket, as a histogram of the metrics wants them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class DurationCounter:
    """Histogram of durations that grows: a count for each bucket (not cumulative), and the sum in seconds."""

    __slots__ = ("_bounds_s", "buckets", "seconds")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        """`bounds_s` are the buckets' upper bounds; one more bucket holds the rest."""
        self._bounds_s = bounds_s
        self.buckets = [0] * (len(bounds_s) + 1)
        self.seconds = 0.0

    def add(self, took_s: float) -> None:
        # A duration equal to a bound belongs to that bucket, as Prometheus has it (`le`).
        self.buckets[bisect_left(self._bounds_s, took_s)] += 1
        self.seconds += took_s
