"""Runs as several scenarios have them: what one server did under one load."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GeneratedRun:
    """One run of wrk or h2load at a server."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """CPU time of the server's processes, per request; 0 where they are the upstream's."""
    errors: int


@dataclass(frozen=True, slots=True)
class ClosedLoopRun:
    """One run of `perf.load.closed_loop` at a server."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """CPU time of all the server's processes, per request."""
    client_share: float
    """CPU that the load generator took, of one core."""
    errors: int
