"""Prometheus metrics of the jobs that all gateways share, `tidegate_jobs*`; each gateway shows the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from control_plane.jobs.domain.job import JobState
from control_plane.jobs.ports import Backlog


class JobMetrics(Collector):
    """Prometheus collector over the backlog in the store of jobs."""

    def __init__(self, latest: Callable[[], Backlog | None], *, today_s: Callable[[], float] = time.time) -> None:
        """`latest` returns what was read, None while the store is away; `today_s` is seconds since 1970."""
        self._latest = latest
        self._today_s = today_s

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; without samples while the store is away."""
        help_text = "Jobs that wait (queued), run, or are dead: all attempts have failed, and an administrator has to queue or drop them."
        jobs = GaugeMetricFamily("tidegate_jobs", help_text, labels=("state",))
        help_text = "Seconds since the oldest of the jobs that wait was submitted; 0 where none waits."
        oldest = GaugeMetricFamily("tidegate_jobs_oldest_waiting_seconds", help_text)
        if (found := self._latest()) is not None:
            for state, count in ((JobState.QUEUED, found.queued), (JobState.RUNNING, found.running), (JobState.DEAD, found.dead)):
                jobs.add_metric((state.value,), count)
            oldest.add_metric((), 0.0 if found.oldest_s is None else max(0.0, self._today_s() - found.oldest_s))
        yield from (jobs, oldest)
