"""Whether something that is not needed is still worth asking, and when to try it again; asked by `cache/adapters/redis_cache`.

Closed until it fails too often, then open: nobody asks any more, and trials of nobody's request come after growing pauses,
until some in a row succeed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """When to open, and how to come back."""

    failures: int = 5
    """In a row. Each success makes up for half a failure, so one that fails every second time is cut off as well."""

    successes: int = 3
    """Trials in a row that close it again: one alone may have come through by luck."""

    first_pause_s: float = 0.1
    """Before the first trial; also between those that succeed."""

    max_pause_s: float = 5.0
    """It doubles up to here with each trial that fails. What is back is used again this much later at most."""

    settled_after_s: float = 10.0
    """Closed for less than this, it opens with a longer pause than before: trials succeed, and the work does not."""


class CircuitBreaker:
    """Begins closed."""

    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self._limits = limits or BreakerLimits()
        self.is_open = False
        self._failures = 0.0
        self._successes = 0
        self._pause_s = self._limits.first_pause_s
        self._closed_s = float("-inf")

    @property
    def pause_s(self) -> float:
        """How long to wait before the next attempt; none while it is closed."""
        if not self.is_open:
            return 0.0
        return self._limits.first_pause_s if self._successes else self._pause_s

    def succeeded(self, now_s: float) -> None:
        if not self.is_open:
            self._failures = max(0.0, self._failures - 0.5)
            return
        self._successes += 1
        if self._successes >= self._limits.successes:
            self.is_open, self._failures, self._closed_s = False, 0.0, now_s

    def failed(self, now_s: float, *, is_away: bool = False) -> None:
        """It did not answer, or too late; one that `is_away` is not even there to be asked, so once is enough."""
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
