"""Classifies a request as short or long and urgent or not, and chooses the server pool for it. Called when a request arrives.

A short request behind a long one waits many times its own duration (head-of-line blocking), so the two are separated where
there are servers for both.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log


class Length(StrEnum):
    """Length class of a request."""

    SHORT = "short"
    LONG = "long"


@dataclass(frozen=True, slots=True)
class WorkloadClass:
    """Class of requests with regard to server pools."""

    length: Length
    is_urgent: bool

    @property
    def pools(self) -> tuple[str, ...]:
        """Names of the pools that would do, the best first."""
        return (f"{self.length}-urgent", self.length.value) if self.is_urgent else (self.length.value,)


@dataclass(frozen=True, slots=True)
class WorkloadLimits:
    """Thresholds from which a request is long, or urgent."""

    long_units: float = 50.0
    """Cost in compute units (milliseconds of one instance): the start of a learned threshold, and the
    threshold where none is learned."""

    long_rows: int = 64
    """Rows of a request of unknown cost: more than most models batch."""

    long_bytes: int = 1 << 20
    """Bytes of a request of unknown cost."""

    urgent_from: int = 1
    """Tenants of this priority and of higher ones are urgent."""


_DEFAULT = WorkloadLimits()

# Part of all requests that is short. In heavy-tailed work the longest tenth is half of it or more.
_SHORT_PART = 0.9

# Learning rate: small enough that no burst moves the threshold far; a hundred long requests in a row double
# it.
_STEP = 0.0077


def classify(
    *,
    rows: int,
    size_bytes: int,
    cost_units: float | None,
    priority: int,
    long_units: float | None = None,
    limits: WorkloadLimits = _DEFAULT,
) -> WorkloadClass:
    """Classify a request; `cost_units` is None if its cost is unknown, `long_units` None if no threshold has
    been learned yet."""
    if cost_units is not None:
        is_long = cost_units > (limits.long_units if long_units is None else long_units)
    else:
        is_long = rows > limits.long_rows or size_bytes > limits.long_bytes
    return WorkloadClass(Length.LONG if is_long else Length.SHORT, priority >= limits.urgent_from)


def learned_threshold(threshold_units: float, cost_units: float) -> float:
    """Return the threshold after a request of this cost: it converges to where nine of ten requests are
    short.

    Stochastic approximation of a quantile (Robbins and Monro 1951), in logarithms, so that one learning rate
    fits costs of any size.
    """
    if threshold_units <= 0:
        return max(cost_units, 0.0)
    return exp(log(threshold_units) + _STEP * (_SHORT_PART if cost_units > threshold_units else _SHORT_PART - 1.0))


def pool_for(workload: WorkloadClass, pools: Collection[str]) -> str | None:
    """Return the workload's best pool among those that have a server up; None if there is none, and so all
    servers take its requests."""
    return next((pool for pool in workload.pools if pool in pools), None)
