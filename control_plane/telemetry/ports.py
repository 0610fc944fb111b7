"""What is told of each request, for metrics."""

from __future__ import annotations

from typing import Protocol

from control_plane.core.infer_call import Door, Outcome


class RequestRecorder(Protocol):
    """Counts what the gateway answered."""

    def record(self, *, model_name: str, door: Door, outcome: Outcome, duration_s: float, count: int = 1) -> None:
        """`count` of them that took `duration_s` each."""
