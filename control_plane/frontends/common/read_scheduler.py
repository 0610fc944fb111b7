"""Fair scheduling of reads between connections: those with a backlog share a small part of each turn of the
event loop.

What arrives on a connection is parsed at once only as far as one request or a few frames. If more is left,
the connection is *behind*: it waits here and its socket is not read meanwhile. Clients that send one request
at a time are never behind, so they wait little for the others, however many those are. While there are such
clients the part is smaller yet, and most turns are theirs alone: each of their requests takes a few turns, here and on
its way to Triton and back.

A socket that delivers a large body is read once and then waits here, too: of all of these one is read in a turn, or a
few where turns are long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import islice
from typing import Protocol, cast

_TURN_S = 0.0002
"""Seconds of each turn for all connections that are behind: the time of a few calls. A turn of the loop costs
10 us by itself, so clients that send many calls at once over one connection, as gRPC's do, lose little by
it."""

_SHARED_TURN_S, _SHARED_FOR_S = 0.00005, 0.1
"""Seconds of each turn while others that are not behind send requests, and for how long after each of them. A flood of calls on one
connection moved their p50 and p99 twice as far with the longer time."""

_REST_TURNS, _REST_S = 3, 0.001
"""Turns between two in which those that are behind read, while others keep up, and how long these turns take at most. A
request's steps (it arrives, is worked on, is written) then meet one such turn instead of three; a turn without any
work takes 10 us, so that nobody who is behind waits long where the others do nothing."""

_SOCKETS_AT_ONCE = 4
"""Sockets with large bodies that are read in one turn where the turns before took `_REST_S`; 256 KB of each take some
0.15 ms. One in each millisecond would be a limit of 256 MB/s for all of them."""

LARGE_READ_BYTES = 64 * 1024
"""A read after which a connection pauses (`put_off`). Of what a socket holds uvloop would read up to 8 MB before anybody
else is served, and that takes 5 to 10 ms."""

_MAX_AT_ONCE = 16
"""Connections that read in one turn: each reads at least a request or two, however small its share of time is. While
others keep up, so many as there is time for: sixteen took 1 to 2 ms."""


class BackloggedConnection(Protocol):
    """A connection with a backlog."""

    def read_backlog(self, until_s: float) -> bool:
        """Parse more until about `until_s`; returns whether more of the backlog can be parsed."""


class PausedConnection(Protocol):
    """A connection that has stopped reading its socket after a large read."""

    def read_socket(self) -> None:
        """Read the socket again: what has come meanwhile is received in this turn of the loop."""


class ReadScheduler:
    """Round-robin scheduler of connections with a backlog, with a time budget in each turn of the event
    loop."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        self._behind: dict[BackloggedConnection, None] = {}
        self._paused: dict[PausedConnection, None] = {}
        self.kept_up: BackloggedConnection | None = None
        """The last connection that sent something of which nothing was left over; set by the connection."""
        self._shared_until_s = self._ran_at_s = float("-inf")
        self._rested = 0
        """Turns since those that are behind have read."""
        self._is_running = False

    def add(self, connection: BackloggedConnection) -> None:
        """Schedule a connection from the next turn of the loop on; idempotent."""
        self._behind[connection] = None
        self._start()

    def put_off(self, connection: PausedConnection) -> None:
        """Have a connection read its socket again in one of the next turns; idempotent."""
        self._paused[connection] = None
        self._start()

    def remove(self, connection: BackloggedConnection | PausedConnection) -> None:
        """Forget a connection that has closed."""
        self._behind.pop(cast("BackloggedConnection", connection), None)
        self._paused.pop(cast("PausedConnection", connection), None)
        if self.kept_up is connection:
            self.kept_up = None

    def _start(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._rested, self._ran_at_s = _REST_TURNS, self.now_s()  # nobody has read of late
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        now_s = self.now_s()
        if self.kept_up is not None:
            if self.kept_up not in self._behind:
                self._shared_until_s = now_s + _SHARED_FOR_S
            self.kept_up = None
        is_shared = now_s < self._shared_until_s
        if is_shared and self._rested < _REST_TURNS and now_s - self._ran_at_s < _REST_S:
            self._rested += 1
        else:
            self._read(now_s, is_shared=is_shared, sockets=_SOCKETS_AT_ONCE if now_s - self._ran_at_s >= _REST_S else 1)
            self._rested, self._ran_at_s = 0, self.now_s()
        self._is_running = bool(self._behind or self._paused)
        if self._is_running:
            asyncio.get_running_loop().call_soon(self._run)

    def _read(self, now_s: float, *, is_shared: bool, sockets: int) -> None:
        """Let those that are behind read for a while, and so many that have paused."""
        turn_s, count = _SHARED_TURN_S if is_shared else _TURN_S, min(_MAX_AT_ONCE, len(self._behind))
        for number in range(1, count + 1):
            if not self._behind:  # a connection's read may have closed other connections
                break
            connection = next(iter(self._behind))
            del self._behind[connection]
            if connection.read_backlog(now_s + turn_s * number / count):
                self._behind[connection] = None
            if is_shared and self.now_s() >= now_s + turn_s:
                break
        for paused in tuple(islice(self._paused, sockets)):
            del self._paused[paused]
            paused.read_socket()
