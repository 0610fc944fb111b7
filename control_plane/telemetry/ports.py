"""Port for recording each request in the metrics; the inference service calls it."""

from __future__ import annotations

from typing import Protocol

from control_plane.core.infer_call import Frontend, Outcome


class RequestRecorder(Protocol):
    """Recorder of ended requests, for metrics."""

    def record(self, *, model_name: str, frontend: Frontend, outcome: Outcome, duration_s: float, count: int = 1) -> None:
        """Record `count` requests that ended with `outcome` after `duration_s` each."""

    def record_work(self, model_name: str, units: float, duration_s: float, /) -> None:
        """Record an answer that was computed: what it was expected to cost, more than 0 compute units, and how long it took."""

    def record_computed(self, model_name: str) -> None:
        """Record a request that took a server's time, or would have (`telemetry/request_counts.ComputedCount`)."""
