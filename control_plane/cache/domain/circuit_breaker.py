"""Circuit breaker for a dependency that callers can do without, used by `cache/adapters/redis_cache_lookups`.

The breaker is closed until calls fail too often. Then it is open: no caller uses the dependency, and probes
that belong to no request are made after growing pauses, until several in a row succeed. Pure: whoever uses it
makes the calls and the pauses.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """Thresholds of a circuit breaker: when it opens, how often it probes and when it closes."""

    failures: int = 5
    """Failures in a row that open the breaker. A success cancels only half a failure, so a dependency that
    fails every second call is cut off as well.
    """

    successes: int = 3
    """Probes in a row that must succeed to close the breaker: a single one may come through by luck."""

    first_pause_s: float = 0.1
    """Pause before the first probe, and between probes that succeed."""

    max_pause_s: float = 5.0
    """Longest pause. The pause doubles with each failed probe up to this; so a dependency is back in use at
    most this much later than it recovered.
    """

    settled_after_s: float = 10.0
    """A breaker that opens sooner than this after it closed continues with twice its last pause: probes
    succeed there, and the real load does not.
    """


class CircuitBreaker:
    """Circuit breaker, closed at first; the caller reports each outcome and asks how long to pause."""

    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self._limits = limits or BreakerLimits()
        self.is_open = False
        self._failures = 0.0
        self._successes = 0
        self._pause_s = self._limits.first_pause_s
        self._closed_s = float("-inf")

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next probe; 0.0 while the breaker is closed."""
        if not self.is_open:
            return 0.0
        # After one success the others that are needed follow soon.
        return self._limits.first_pause_s if self._successes else self._pause_s

    def succeeded(self, now_s: float) -> None:
        """Record a call, or a probe, that was answered."""
        if not self.is_open:
            self._failures = max(0.0, self._failures - 0.5)
            return
        self._successes += 1
        if self._successes >= self._limits.successes:
            self.is_open, self._failures, self._closed_s = False, 0.0, now_s

    def failed(self, now_s: float, *, is_away: bool = False) -> None:
        """Record a call, or a probe, that was not answered in time.

        A dependency that `is_away` cannot even be connected to: that is no bad luck of a single call, so once
        opens the breaker.
        """
        if self.is_open:
            self._successes = 0
            self._lengthen()
            return
        self._failures += 1
        if is_away or self._failures >= self._limits.failures:
            self._open(now_s)

    def _open(self, now_s: float) -> None:
        self.is_open, self._successes = True, 0
        if now_s - self._closed_s < self._limits.settled_after_s:
            self._lengthen()
        else:
            self._pause_s = self._limits.first_pause_s

    def _lengthen(self) -> None:
        self._pause_s = min(2 * self._pause_s, self._limits.max_pause_s)
