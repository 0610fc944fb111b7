"""Compute time of models, as Triton counts it, and the charges of requests for it that are still open. Pure;
used by metering.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class ComputeTime:
    """Cumulative compute time of one model, over all versions and instances, since it was loaded."""

    inferences: int = 0
    """Rows that were computed; a batch of eight counts as eight."""
    compute_ns: int = 0
    """Time of the instances; a batch counts its time once, however many rows it has."""


@dataclass(frozen=True, slots=True)
class Computed:
    """Rows and time that a model's instances have computed between two reads of Triton's counts."""

    rows: float = 0.0
    ms: float = 0.0

    def __add__(self, other: Computed) -> Computed:
        return Computed(self.rows + other.rows, self.ms + other.ms)


NOTHING = Computed()


class Ending(Enum):
    """End of a request, as far as it tells about its computation at Triton."""

    ANSWERED = auto()
    """The request was computed, in no more time than it was at Triton."""
    FAILED = auto()
    """The request may have been computed, in no more time than it was at Triton."""
    LEFT = auto()
    """The caller has left: the computation goes on, unless Triton drops it, and its end is not observed."""


_NEXT_TO_NOTHING = 1e-6
"""Rows below which a charge counts as settled: rounding leaves as much."""


@dataclass(slots=True)
class OpenCharge:
    """Open charge: ended requests of one tenant whose compute time of one model is still to be charged."""

    tenant: str
    model: str
    """Model that was asked for, under whose name the requests are metered."""
    step: str
    """Model that computes: a step of an ensemble, otherwise the model itself."""
    answered_rows: float = 0.0
    answered_ms: float = 0.0
    """Sum of the times that these requests were at Triton."""
    failed_rows: float = 0.0
    failed_ms: float = 0.0
    left_rows: float = 0.0

    def include(self, other: OpenCharge) -> None:
        """Add another open charge of the same tenant and models."""
        self.answered_rows += other.answered_rows
        self.answered_ms += other.answered_ms
        self.failed_rows += other.failed_rows
        self.failed_ms += other.failed_ms
        self.left_rows += other.left_rows

    def charge(self, left_part: float) -> None:
        """Mark as charged all requests that were answered or failed, and this part of those whose callers
        left.
        """
        self.answered_rows = self.answered_ms = self.failed_rows = self.failed_ms = 0.0
        self.left_rows *= 1.0 - left_part

    @property
    def is_open(self) -> bool:
        return bool(self.answered_rows or self.failed_rows or self.left_rows > _NEXT_TO_NOTHING)
