"""Tenants: on whose account requests go, and what each may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tenant:
    """One account; None is no limit."""

    name: str
    requests_per_s: float | None = None
    burst: int | None = None
    """Requests that may come at once; None is one second's worth, at least 1."""
    concurrency: int | None = None
    """Requests that may be under way."""
    daily_compute_units: float | None = None
    """From midnight to midnight, UTC. One unit is a millisecond of one instance at batch 1."""
    weight: float = 1.0
    """Its share of a model that cannot serve everybody, next to the other tenants' weights."""
    priority: int = 0
    """Tenants of a higher one are served first where a model cannot serve everybody; weights count among equals."""
