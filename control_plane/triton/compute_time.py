"""How long models computed, as Triton counts it, and what requests have yet to be charged for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class ComputeTime:
    """The compute time of one model, over all its versions and instances, since it was loaded."""

    inferences: int = 0
    """Rows that were computed; a batch of eight counts eight."""
    compute_ns: int = 0
    """Of the instances: a batch counts its time once, however many rows it has."""


@dataclass(frozen=True, slots=True)
class Computed:
    """What a model's instances have done between two looks at Triton's counts."""

    rows: float = 0.0
    ms: float = 0.0

    def __add__(self, other: Computed) -> Computed:
        return Computed(self.rows + other.rows, self.ms + other.ms)


NOTHING = Computed()


class Ending(Enum):
    """What the way in which a request ended says of its computation at Triton."""

    ANSWERED = auto()
    """It was computed, and took no longer than the request was there."""
    FAILED = auto()
    """It may have been computed, and took no longer than the request was there."""
    LEFT = auto()
    """It goes on, if Triton does not drop it: nobody waits for its end any more."""


_NEXT_TO_NOTHING = 1e-6
"""Rows: what rounding leaves of one."""


@dataclass(slots=True)
class OpenCharge:
    """Requests of one tenant that have ended, and whose computing of one model is yet to be charged."""

    tenant: str
    model: str
    """That was asked for, under whose name they are metered."""
    step: str
    """The model that computes: of an ensemble one of its steps, else the same."""
    answered_rows: float = 0.0
    answered_ms: float = 0.0
    """That they were at Triton, all together."""
    failed_rows: float = 0.0
    failed_ms: float = 0.0
    left_rows: float = 0.0

    def include(self, other: OpenCharge) -> None:
        """Others of the same tenant and models."""
        self.answered_rows += other.answered_rows
        self.answered_ms += other.answered_ms
        self.failed_rows += other.failed_rows
        self.failed_ms += other.failed_ms
        self.left_rows += other.left_rows

    def settle(self, left_part: float) -> None:
        """It is charged for what has ended, and for this part of what was left."""
        self.answered_rows = self.answered_ms = self.failed_rows = self.failed_ms = 0.0
        self.left_rows *= 1.0 - left_part

    @property
    def is_open(self) -> bool:
        return bool(self.answered_rows or self.failed_rows or self.left_rows > _NEXT_TO_NOTHING)
