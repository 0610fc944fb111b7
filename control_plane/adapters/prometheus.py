"""Counts what the gateway does, as `tidegate_*` metrics in Prometheus' text format.

Counted in plain dictionaries by the one thread that serves, and turned into metrics when the page is asked for: a
labelled counter and a histogram of the client library cost 5 us a request, which is a third of a hop. With several
workers each counts for itself and the page shows the sum.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from control_plane.domain.inference import Door, Outcome
from control_plane.domain.request_counts import BUCKETS_S, Ended, RequestCounts, Took


class RequestCounter:
    """`ports.RequestRecorder` of one process."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, Door, Outcome], int] = {}
        self._took: dict[tuple[str, Door], list[int]] = {}
        self._seconds: dict[tuple[str, Door], float] = {}
        self._known_models: set[str] = set()

    def record(self, *, model_name: str, door: Door, outcome: Outcome, duration_s: float) -> None:
        """Count one request; names that Triton has not vouched for share one label, or callers could grow the page at will."""
        if outcome is Outcome.ANSWERED:  # an error proves nothing: Triton refuses some requests before it looks at the name
            self._known_models.add(model_name)
        model = model_name if model_name in self._known_models else ""
        ended = (model, door, outcome)
        self._ended[ended] = self._ended.get(ended, 0) + 1
        took = (model, door)
        if took not in self._took:
            self._took[took], self._seconds[took] = [0] * (len(BUCKETS_S) + 1), 0.0
        self._took[took][bisect_left(BUCKETS_S, duration_s)] += 1
        self._seconds[took] += duration_s

    def counts(self, *, in_flight: int) -> RequestCounts:
        """All of it up to now."""
        return RequestCounts(
            ended=tuple(Ended(*key, count) for key, count in self._ended.items()),
            took=tuple(Took(*key, tuple(counts), self._seconds[key]) for key, counts in self._took.items()),
            in_flight=in_flight,
        )


class OwnMetrics:
    """The page of all our own metrics; one registry of its own, so that nothing is global."""

    def __init__(
        self,
        *,
        version: str,
        counts: Callable[[], RequestCounts],
        workers: Callable[[], int],
        triton_is_up: Callable[[], bool],
        state_behind_s: Callable[[], float],
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Requests(counts))
        Gauge("tidegate_workers", "Processes that answer the data ports now.", registry=self._registry).set_function(workers)
        Gauge("tidegate_triton_up", "1 while Triton can be asked.", registry=self._registry).set_function(lambda: float(triton_is_up()))
        Gauge(
            "tidegate_state_behind_seconds",
            "Seconds since the state store last confirmed what is known of keys, tenants and routes; 0 while it can be reached.",
            registry=self._registry,
        ).set_function(state_behind_s)
        Gauge("tidegate_build_info", "The version that is running.", ("version",), registry=self._registry).labels(version).set(1)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _Requests(Collector):
    """Requests by how they ended and how long they took."""

    def __init__(self, counts: Callable[[], RequestCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts()
        requests = CounterMetricFamily("tidegate_requests", "Inference requests by how they ended.", labels=("model", "door", "outcome"))
        for ended in counts.ended:
            requests.add_metric((ended.model, ended.door.value, ended.outcome.value), ended.count)
        yield requests
        seconds = HistogramMetricFamily(
            "tidegate_request_duration_seconds", "Time from a whole request to its answer.", labels=("model", "door")
        )
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        for took in counts.took:
            buckets = list(zip(bounds, accumulate(took.buckets), strict=True))
            seconds.add_metric((took.model, took.door.value), buckets, took.seconds)
        yield seconds
        shed = CounterMetricFamily(
            "tidegate_requests_shed", "Requests turned away though allowed and in order.", labels=("tenant", "reason")
        )
        for turned_away in counts.shed:
            shed.add_metric((turned_away.tenant, turned_away.reason.value), turned_away.count)
        yield shed
        yield CounterMetricFamily("tidegate_usage_dropped", "Requests not metered, since too many waited.", value=counts.unmetered)
        yield GaugeMetricFamily("tidegate_requests_in_flight", "Inference requests being answered now.", value=counts.in_flight)
