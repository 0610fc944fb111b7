"""Observation of a request that a rollout has assigned: a value that workers tell their parent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    """Stable's half of a copied request: what it made of the request that the next model has computed, too."""

    stable_is_fault: bool
    differs: bool | None = None
    """Whether the two answers differ by the rollout's agreement; None where that cannot be said."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Outcome of one computed request, for the rollout that assigned it."""

    route: str
    rollout: str
    """Id of the rollout that had assigned the request."""
    is_stable: bool
    digest: int
    """Digest of what a caller is assigned by: requests of one digest are not independent of each other."""
    is_fault: bool
    took_s: float
    """Seconds from the request's sending to a server until its answer."""
    is_death: bool = False
    """Whether the fault was the end of a process: of the model's stub, or of its server."""
    pair: Pair | None = None
    """What stable made of the same request, where this one is a copy of it; None where it is none."""
    tenant: str = ""
    """Whose request it is; empty where callers have no names, or where none can choose his places."""
