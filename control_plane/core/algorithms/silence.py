"""Failure detector by heartbeats: decides from missed ones when somebody who may be frozen counts as silent.

A pure decision for whoever listens: `triton/liveness_watch` to the Tritons, `workers/parent/workers` to the worker
processes. A miss is believed only if the listener itself was on time: on a machine that starves every process
nobody is silent, everybody is slow.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """Limits from which on no news is a silence. One answer ends it."""

    interval_s: float = 0.25
    """Time between two heartbeats, and for which one is waited before it is missed."""

    max_misses: int = 2
    """Missed heartbeats in a row with which a silence begins. With the interval before them that is at most
    0.75 s after the last sign of life."""

    max_late_s: float = 0.1
    """Largest delay of the listener's own timers with which a miss still counts."""


class SilenceDetector:
    """Failure detector for one peer."""

    def __init__(self, limits: SilenceLimits | None = None) -> None:
        self.limits = limits or SilenceLimits()
        self.is_silent = False
        self.since_s = 0.0
        """When the peer was last heard before the silence."""
        self._misses = 0
        self._heard_s = 0.0

    def heard(self, now_s: float) -> bool:
        """Note a sign of life. Returns whether a silence has ended."""
        was_silent, self.is_silent = self.is_silent, False
        self._misses, self._heard_s = 0, now_s
        return was_silent

    def missed(self, *, late_s: float) -> bool:
        """Note that a heartbeat was missed, while the listener's own timers were `late_s` late at most.
        Returns whether a silence has begun."""
        if late_s > self.limits.max_late_s:
            # The next one begins to count anew: before it the answer may only not have been read.
            self._misses = 0
            return False
        self._misses += 1
        if self.is_silent or self._misses < self.limits.max_misses:
            return False
        self.is_silent, self.since_s = True, self._heard_s
        return True
