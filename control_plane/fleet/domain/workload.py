"""What kind of request it is, and which pool of servers it goes to; asked at the door.

Short requests behind long ones wait many times their own length, so the two are kept apart where there are servers for both.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log


class Length(StrEnum):
    SHORT = "short"
    LONG = "long"


@dataclass(frozen=True, slots=True)
class Workload:
    """A class of requests."""

    length: Length
    is_urgent: bool

    @property
    def pools(self) -> tuple[str, ...]:
        """Those that would do, the best first."""
        return (f"{self.length}-urgent", self.length.value) if self.is_urgent else (self.length.value,)


@dataclass(frozen=True, slots=True)
class WorkloadLimits:
    """From where on a request is long."""

    long_units: float = 50.0
    """Compute units, milliseconds of one instance: at the start of a learned threshold, and for good where none is learned."""

    long_rows: int = 64
    """Where its cost is not known: more rows than most models batch."""

    long_bytes: int = 1 << 20
    """Where its cost is not known."""

    urgent_from: int = 1
    """Tenants of this priority and higher ones are urgent."""


_DEFAULT = WorkloadLimits()

# Of all requests; the rest is long. Of heavy-tailed work, the longest tenth is half or more.
_SHORT_PART = 0.9

# Small enough that no burst moves the threshold far: a hundred long requests in a row double it.
_STEP = 0.0077


def classify(
    *,
    rows: int,
    size_bytes: int,
    cost_units: float | None,
    priority: int,
    long_units: float | None = None,
    limits: WorkloadLimits = _DEFAULT,
) -> Workload:
    """Give `long_units` if a threshold has been learned (`learned_threshold`), and None for a cost that nobody knows."""
    if cost_units is not None:
        is_long = cost_units > (limits.long_units if long_units is None else long_units)
    else:
        is_long = rows > limits.long_rows or size_bytes > limits.long_bytes
    return Workload(Length.LONG if is_long else Length.SHORT, priority >= limits.urgent_from)


def learned_threshold(threshold_units: float, cost_units: float) -> float:
    """What it is after a request of this cost: it settles where nine of ten are short.

    Stochastic approximation of a quantile (Robbins and Monro 1951), of the logarithm, so that it fits costs of any size.
    """
    if threshold_units <= 0:
        return max(cost_units, 0.0)
    return exp(log(threshold_units) + _STEP * (_SHORT_PART if cost_units > threshold_units else _SHORT_PART - 1.0))


def pool_for(workload: Workload, pools: Collection[str]) -> str | None:
    """Of the pools that have a server up; None: none of them is for such requests, so all servers are for them."""
    return next((pool for pool in workload.pools if pool in pools), None)
