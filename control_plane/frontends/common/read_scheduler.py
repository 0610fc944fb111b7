"""Who reads on: connections whose clients have sent more than one turn of the event loop reads of it.

What arrives on a connection is read at once as far as one request goes, or a few frames. What is left waits here, and its socket is not
read meanwhile. Those that are behind share a little time of each turn of the loop, so whoever asks one thing at a time, which is never
behind, waits little for them, however many they are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

_TURN_S = 0.0002
"""Of each turn, for all that are behind: what a few calls take. A turn costs 10 us by itself, so clients that send many calls at once over
one connection, as gRPC's do, lose little by it."""

_MAX_AT_ONCE = 16
"""Connections that read in a turn: each reads a request or two, however little time is its share."""


class Reading(Protocol):
    """A connection that is behind."""

    def read_on(self, until_s: float) -> bool:
        """Read on until then, or a little further; whether more of what has come can be read."""


class ReadScheduler:
    """Round-robin scheduler of the connections that are behind, with a budget of time in each turn of the event loop."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        self._behind: dict[Reading, None] = {}
        self._is_running = False

    def add(self, connection: Reading) -> None:
        """Let it read on, from the next turn of the loop; more than once is once."""
        self._behind[connection] = None
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._run)

    def remove(self, connection: Reading) -> None:
        """It has closed."""
        self._behind.pop(connection, None)

    def _run(self) -> None:
        now_s, count = self.now_s(), min(_MAX_AT_ONCE, len(self._behind))
        for number in range(1, count + 1):
            if not self._behind:  # one may have closed another
                break
            connection = next(iter(self._behind))
            del self._behind[connection]
            if connection.read_on(now_s + _TURN_S * number / count):
                self._behind[connection] = None
        self._is_running = bool(self._behind)
        if self._is_running:
            asyncio.get_running_loop().call_soon(self._run)
