"""Simulated time: the event queue of the simulation."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any


class Clock:
    """Event queue in order of time; events at the same time happen in the order in which they were
    scheduled."""

    __slots__ = ("_events", "_order", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    def at(self, when_s: float, call: Callable[..., None], *arguments: object) -> None:
        # The running number breaks ties, so the heap never compares two callables.
        """Schedule a call."""
        heappush(self._events, (when_s, next(self._order), call, arguments))

    def run_until(self, when_s: float) -> None:
        """Let everything up to that time happen, and set the clock to it."""
        events = self._events
        while events and events[0][0] <= when_s:
            self.now_s, _, call, arguments = heappop(events)
            call(*arguments)
        self.now_s = when_s

    def run_out(self) -> None:
        """Let everything happen, until no event is left."""
        while self._events:
            self.run_until(self._events[0][0])
