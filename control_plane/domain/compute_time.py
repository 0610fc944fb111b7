"""How long models computed, as Triton counts it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ComputeTime:
    """Of one model, over all its versions and instances, since it was loaded."""

    inferences: int = 0
    """Rows that were computed; a batch of eight counts eight."""
    compute_ns: int = 0
    """Of the instances: a batch counts its time once, however many rows it has."""
