"""Fair scheduling of reads between connections: those with a backlog share a small part of each turn of the
event loop.

What arrives on a connection is parsed at once only as far as one request or a few frames. If more is left,
the connection is *behind*: it waits here and its socket is not read meanwhile. Clients that send one request
at a time are never behind, so they wait little for the others, however many those are. While there are such
clients the part is smaller yet: each of their requests waits for a few turns, here and on its way to Triton and back.
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

_SHARED_TURN_S, _SHARED_FOR_S = 0.00005, 0.1
"""The same while others that are not behind send requests, and for how long after each of them. A flood of calls on one
connection moved their p50 and p99 twice as far with the longer time."""

_MAX_AT_ONCE = 16
"""Connections that read in one turn: each reads at least a request or two, however small its share of time is. While
others keep up, so many as there is time for: sixteen took 1 to 2 ms."""


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
        self.kept_up: BackloggedConnection | None = None
        """The last connection that sent something of which nothing was left over; set by the connection."""
        self._shared_until_s = float("-inf")
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
        if self.kept_up is connection:
            self.kept_up = None

    def _run(self) -> None:
        now_s, count = self.now_s(), min(_MAX_AT_ONCE, len(self._behind))
        if self.kept_up is not None:
            if self.kept_up not in self._behind:
                self._shared_until_s = now_s + _SHARED_FOR_S
            self.kept_up = None
        is_shared = now_s < self._shared_until_s
        turn_s = _SHARED_TURN_S if is_shared else _TURN_S
        for number in range(1, count + 1):
            if not self._behind:  # a connection's read may have closed other connections
                break
            connection = next(iter(self._behind))
            del self._behind[connection]
            if connection.read_backlog(now_s + turn_s * number / count):
                self._behind[connection] = None
            if is_shared and self.now_s() >= now_s + turn_s:
                break
        self._is_running = bool(self._behind)
        if self._is_running:
            asyncio.get_running_loop().call_soon(self._run)
