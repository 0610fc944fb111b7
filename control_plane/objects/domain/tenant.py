"""Tenants: the accounts that requests are charged to, with their limits."""

from __future__ import annotations

from dataclasses import dataclass

LOCAL, ANY = "local", "any"
"""Values of `Tenant.regions`."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Account of a customer or team with its limits; a limit of None is no limit."""

    name: str
    requests_per_s: float | None = None
    burst: int | None = None
    """Size of the token bucket: requests that may come at once. None is one second's worth, at least 1."""
    concurrency: int | None = None
    """Requests that may be under way at a time."""
    daily_compute_units: float | None = None
    """Quota from midnight to midnight, UTC. One compute unit is a millisecond of one instance at batch 1."""
    weight: float = 1.0
    """Share of a model that is saturated, relative to the other tenants' weights."""
    priority: int = 0
    """Tenants of a higher priority are served first by a model that is saturated; weights count among equal
    priorities.
    """
    regions: str = ANY
    """Where its requests may be computed: `any`, or `local`, in the region only that they came to."""
