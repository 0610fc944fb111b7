"""How long to wait before an ended Triton is started again; asked by `triton/supervisor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """Bounds of the back-off, in seconds."""

    first_delay_s: float = 0.2
    """Long enough for the kernel to release the ports, short enough that a caller's retry still succeeds."""

    max_delay_s: float = 30.0
    """A Triton that cannot run costs one start per this long, and one that can again is back within it."""

    settled_after_s: float = 60.0
    """A life longer than this owes nothing to the failures before it: a poisonous request an hour is no crash loop."""


def count_failures(previous: int, *, life_s: float, limits: RestartLimits) -> int:
    """Consecutive failures, including the life that has just ended after `life_s` seconds."""
    return 1 if life_s > limits.settled_after_s else previous + 1


def restart_delay_s(consecutive_failures: int, *, limits: RestartLimits) -> float:
    """Seconds to wait after so many failures in a row (at least one): doubling from the first delay to the longest."""
    doublings = min(consecutive_failures - 1, 64)
    return min(limits.first_delay_s * 2.0**doublings, limits.max_delay_s)
