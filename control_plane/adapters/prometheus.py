"""Counts what the gateway does, as `tidegate_*` metrics in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from control_plane.domain.inference import Door, Outcome

_BUCKETS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.125, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class PrometheusRecorder:
    """`ports.RequestRecorder`; one registry of its own, so that nothing is global."""

    def __init__(self, *, version: str, in_flight: Callable[[], int], triton_is_up: Callable[[], bool]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "tidegate_requests", "Inference requests by how they ended.", ("model", "door", "outcome"), registry=self._registry
        )
        self._seconds = Histogram(
            "tidegate_request_duration_seconds",
            "Time from a whole request to its answer.",
            ("model", "door"),
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        Gauge("tidegate_requests_in_flight", "Inference requests being answered now.", registry=self._registry).set_function(in_flight)
        Gauge("tidegate_triton_up", "1 while Triton can be asked.", registry=self._registry).set_function(lambda: float(triton_is_up()))
        Gauge("tidegate_build_info", "The version that is running.", ("version",), registry=self._registry).labels(version).set(1)
        self._known_models: set[str] = set()

    def record(self, *, model_name: str, door: Door, outcome: Outcome, duration_s: float) -> None:
        """Count one request; names that Triton has not vouched for share one label, or callers could grow the page at will."""
        if outcome is Outcome.ANSWERED:  # an error proves nothing: Triton refuses some requests before it looks at the name
            self._known_models.add(model_name)
        label = model_name if model_name in self._known_models else ""
        self._requests.labels(label, door.value, outcome.value).inc()
        self._seconds.labels(label, door.value).observe(duration_s)

    def render(self) -> bytes:
        """The page of all our own metrics."""
        return generate_latest(self._registry)
