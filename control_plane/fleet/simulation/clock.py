"""Simulated time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any


class Clock:
    """What is to happen, in order of time; at the same time in the order in which it was arranged."""

    __slots__ = ("_events", "_order", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    def at(self, when_s: float, call: Callable[..., None], *arguments: object) -> None:
        heappush(self._events, (when_s, next(self._order), call, arguments))

    def run_until(self, when_s: float) -> None:
        """Let everything up to that time happen; then it is that time."""
        events = self._events
        while events and events[0][0] <= when_s:
            self.now_s, _, call, arguments = heappop(events)
            call(*arguments)
        self.now_s = when_s

    def run_out(self) -> None:
        """Let everything happen, until nothing is to come."""
        while self._events:
            self.run_until(self._events[0][0])
