"""When the calls of one connection's backlog came.

A connection with a backlog does not read its socket, so what it reads next has waited in the kernel: the first of it since the
read before, the last not at all. What lies between is taken to have come evenly; a single call has come just now.
"""

from __future__ import annotations

from collections.abc import Callable

_RESUMED_S = 0.1
"""Seconds after the end of a backlog in which what is read is taken to have come before that end: a long turn of the loop."""


class Arrivals:
    """Estimate of when the calls that one connection handles now came, by the event loop's clock."""

    def __init__(self, unread_bytes: Callable[[], int]) -> None:
        """`unread_bytes` says how much of what came has not been handled."""
        self._unread_bytes = unread_bytes
        self.are_timed = False
        """Whether they have waited: others are handled as they come. The connection unsets it."""
        self._first_s = self._last_s = self._ended_s = 0.0
        self._size_bytes = 1

    @property
    def came_s(self) -> float | None:
        """When the call that is being handled came; None: just now."""
        if not self.are_timed:
            return None
        return self._last_s - (self._last_s - self._first_s) * min(1.0, self._unread_bytes() / self._size_bytes)

    def began_backlog(self, now_s: float) -> None:
        """Note that more came than was handled at once: just now, unless it is known better."""
        if not self.are_timed:
            self.are_timed = True
            self._first_s = self._last_s = now_s

    def ended_backlog(self, now_s: float) -> None:
        """Note that all of it has been handled, and the socket is read again."""
        self._ended_s = now_s

    def read(self, size_bytes: int, now_s: float) -> None:
        """Note the first read of the socket after a backlog."""
        self._first_s = self._last_s if now_s - self._ended_s <= _RESUMED_S else now_s
        self._last_s, self._size_bytes = now_s, size_bytes
