"""Exponential back-off of Triton's restarts; pure decisions, used by `triton/supervisor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """Bounds of the back-off, in seconds."""

    first_delay_s: float = 0.2
    """Long enough for the kernel to release the ports, short enough that a caller's retry still succeeds."""

    max_delay_s: float = 30.0
    """A Triton that cannot run costs one start per this many seconds; once it can run again, it is back
    within them."""

    settled_after_s: float = 60.0
    """After a life longer than this the failures before it no longer count: one poisonous request an hour is
    no crash loop."""


def count_failures(previous: int, *, life_s: float, limits: RestartLimits) -> int:
    """Return the number of consecutive failures, including the life that has just ended after `life_s`
    seconds.
    """
    return 1 if life_s > limits.settled_after_s else previous + 1


def restart_delay_s(consecutive_failures: int, *, limits: RestartLimits) -> float:
    """Return the seconds to wait after this many failures in a row (at least one): doubles from the first
    delay to the longest.
    """
    doublings = min(consecutive_failures - 1, 64)  # 2.0**1024 would overflow
    return min(limits.first_delay_s * 2.0**doublings, limits.max_delay_s)
