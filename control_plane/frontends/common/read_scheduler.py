"""Fair scheduling of reads between connections: those with a backlog share a small part of each turn of the
event loop.

What arrives on a connection is parsed at once only as far as one request or a few frames. If more is left,
the connection is *behind*: it waits here and its socket is not read meanwhile. Clients that send one request
at a time are never behind, so they wait little for the others, however many those are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

_TURN_S = 0.0002
"""Seconds of each turn for all connections that are behind: the time of a few calls. A turn of the loop costs
10 us by itself, so clients that send many calls at once over one connection, as gRPC's do, lose little by
it."""

_MAX_AT_ONCE = 16
"""Connections that read in one turn: each reads at least a request or two, however small its share of time
is."""


class BackloggedConnection(Protocol):
    """A connection with a backlog."""

    def read_backlog(self, until_s: float) -> bool:
        """Parse more until about `until_s`; returns whether more of the backlog can be parsed."""


class ReadScheduler:
    """Round-robin scheduler of connections with a backlog, with a time budget in each turn of the event
    loop."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        self._behind: dict[BackloggedConnection, None] = {}
        self._is_running = False

    def add(self, connection: BackloggedConnection) -> None:
        """Schedule a connection from the next turn of the loop on; idempotent."""
        self._behind[connection] = None
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._run)

    def remove(self, connection: BackloggedConnection) -> None:
        """Forget a connection that has closed."""
        self._behind.pop(connection, None)

    def _run(self) -> None:
        now_s, count = self.now_s(), min(_MAX_AT_ONCE, len(self._behind))
        for number in range(1, count + 1):
            if not self._behind:  # a connection's read may have closed other connections
                break
            connection = next(iter(self._behind))
            del self._behind[connection]
            if connection.read_backlog(now_s + _TURN_S * number / count):
                self._behind[connection] = None
        self._is_running = bool(self._behind)
        if self._is_running:
            asyncio.get_running_loop().call_soon(self._run)
