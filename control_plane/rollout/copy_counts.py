"""Counts of copied requests of one process, and how long they and their originals took, by route and model.

Called by `rollout/shadow`; `app/data_plane/data_plane` reads them for the metrics page.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

from control_plane.core.algorithms.duration_counter import DurationCounter
from control_plane.rollout.copy_order import CopyOrder
from control_plane.telemetry.request_counts import BUCKETS_S, Copied, CopiedCount, CopiedDurations, Half


class CopyCounts:
    """Counters of copies by what became of them, and histograms of both halves of those that were answered."""

    def __init__(self) -> None:
        self._results: Counter[tuple[str, str, Copied]] = Counter()
        self._took: dict[tuple[str, str, Half], DurationCounter] = {}

    def add(self, order: CopyOrder, result: Copied) -> None:
        self._results[order.route, order.name, result] += 1

    def add_pair(self, order: CopyOrder, *, original_s: float, copy_s: float) -> None:
        """Count how long a request and its copy took, from each one's sending to its answer."""
        for half, took_s in ((Half.ORIGINAL, original_s), (Half.COPY, copy_s)):
            self._took.setdefault((order.route, order.name, half), DurationCounter(BUCKETS_S)).add(took_s)

    def results(self) -> tuple[CopiedCount, ...]:
        """Return all counters, zeros included of those that are copied to at all: rates begin there."""
        places = dict.fromkeys((route, model) for route, model, _ in self._results)
        found = self._results
        return tuple(CopiedCount(route, model, each, found[route, model, each]) for (route, model), each in product(places, Copied))

    def durations(self) -> tuple[CopiedDurations, ...]:
        return tuple(CopiedDurations(*key, tuple(took.buckets), took.seconds) for key, took in self._took.items())
