"""Counts what the gateway does, as `tidegate_*` metrics in Prometheus' text format.

Counted in plain dictionaries by the one thread that serves, and turned into metrics when the page is asked for: a
labelled counter and a histogram of the client library cost 5 us a request, which is a third of a hop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from control_plane.domain.inference import Door, Outcome

_BUCKETS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.125, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class _Requests(Collector):
    """Requests by how they ended and how long they took."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, Door, Outcome], int] = {}
        self._took: dict[tuple[str, Door], list[int]] = {}
        self._seconds: dict[tuple[str, Door], float] = {}

    def add(self, model: str, door: Door, outcome: Outcome, duration_s: float) -> None:
        ended = (model, door, outcome)
        self._ended[ended] = self._ended.get(ended, 0) + 1
        took = (model, door)
        if took not in self._took:
            self._took[took], self._seconds[took] = [0] * (len(_BUCKETS_S) + 1), 0.0
        self._took[took][bisect_left(_BUCKETS_S, duration_s)] += 1
        self._seconds[took] += duration_s

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("tidegate_requests", "Inference requests by how they ended.", labels=("model", "door", "outcome"))
        for (model, door, outcome), count in self._ended.items():
            requests.add_metric((model, door.value, outcome.value), count)
        yield requests
        seconds = HistogramMetricFamily(
            "tidegate_request_duration_seconds", "Time from a whole request to its answer.", labels=("model", "door")
        )
        bounds = [*map(str, _BUCKETS_S), "+Inf"]
        for (model, door), counts in self._took.items():
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            seconds.add_metric((model, door.value), buckets, self._seconds[model, door])
        yield seconds


class PrometheusRecorder:
    """`ports.RequestRecorder`; one registry of its own, so that nothing is global."""

    def __init__(self, *, version: str, in_flight: Callable[[], int], triton_is_up: Callable[[], bool]) -> None:
        self._registry = CollectorRegistry()
        self._requests = _Requests()
        self._registry.register(self._requests)
        Gauge("tidegate_requests_in_flight", "Inference requests being answered now.", registry=self._registry).set_function(in_flight)
        Gauge("tidegate_triton_up", "1 while Triton can be asked.", registry=self._registry).set_function(lambda: float(triton_is_up()))
        Gauge("tidegate_build_info", "The version that is running.", ("version",), registry=self._registry).labels(version).set(1)
        self._known_models: set[str] = set()

    def record(self, *, model_name: str, door: Door, outcome: Outcome, duration_s: float) -> None:
        """Count one request; names that Triton has not vouched for share one label, or callers could grow the page at will."""
        if outcome is Outcome.ANSWERED:  # an error proves nothing: Triton refuses some requests before it looks at the name
            self._known_models.add(model_name)
        label = model_name if model_name in self._known_models else ""
        self._requests.add(label, door, outcome, duration_s)

    def render(self) -> bytes:
        """The page of all our own metrics."""
        return generate_latest(self._registry)
