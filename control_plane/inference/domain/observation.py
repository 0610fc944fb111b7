"""Observation of a request that a rollout has assigned: a value that workers tell their parent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Observation:
    """What became of one computed request."""

    route: str
    rollout: str
    """Id of the rollout that had assigned it."""
    is_stable: bool
    digest: int
    """Of what sticks: requests of one digest are not independent of each other."""
    is_fault: bool
    took_s: float
    """From when it was sent to a server until it was answered."""
