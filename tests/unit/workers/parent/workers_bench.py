"""Counts as a worker reports them."""

from __future__ import annotations

from control_plane.core.infer_call import Frontend, Outcome
from control_plane.telemetry.request_counts import OutcomeCount, RequestCounts


def counted(count: int, *, in_flight: int = 0) -> RequestCounts:
    return RequestCounts((OutcomeCount("a", Frontend.HTTP, Outcome.ANSWERED, count),), (), in_flight)
