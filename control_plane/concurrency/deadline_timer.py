"""Timer for deadlines of which hardly any is reached, such as those of requests.

A timer that is made and cancelled for each request costs more than all else that waits for its answer. This one
is set for the earliest deadline, and looks for the next when it fires: a connection whose requests may take 30 s
each sets one timer in 30 s. Used by `triton/adapters/http/client` and `triton/adapters/grpc/client`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf


class DeadlineTimer:
    """One event-loop timer that stands for many deadlines."""

    __slots__ = ("_loop", "_timer", "due_s")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.due_s = inf
        """When the timer fires, in the loop's time; a later deadline need not be covered."""

    def cover(self, deadline_s: float, expire: Callable[[float], float]) -> None:
        """Fire at `deadline_s` at the latest; `expire` then ends what is due by the loop's time that it is given,
        and returns the next deadline (infinity: there is none).

        It is the same function each time. While no timer is set it is not kept, so that a connection and its timer
        are no reference cycle.
        """
        if deadline_s < self.due_s:
            self.cancel()
            self.due_s = deadline_s
            self._timer = self._loop.call_at(deadline_s, self._fire, expire)

    def cancel(self) -> None:
        """Cover no deadline any more; the next one sets the timer again."""
        self.due_s = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self, expire: Callable[[float], float]) -> None:
        now_s = max(self._loop.time(), self.due_s)  # loops round to milliseconds, and may fire a little early
        self._timer, self.due_s = None, inf
        self.cover(expire(now_s), expire)
