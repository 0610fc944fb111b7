"""Fair scheduling of reads between connections, and of the requests that they read: those with a backlog share a small part of
each turn of the event loop, and few requests begin in each.

What arrives on a connection is parsed at once only as far as one request or a few frames. If more is left,
the connection is *behind*: it waits here and its socket is not read meanwhile. Clients that send one request
at a time are never behind, so they wait little for the others, however many those are. While there are such
clients the part is smaller yet, and most turns are theirs alone: each of their requests takes a few turns, here and on
its way to Triton and back.

Where turns are long, clients that send one request at a time are many, and a small part of a turn would be nothing: those
that are behind then read as many requests as have come from the others. So few requests begin in a turn, whoever they come
from, that those under way go on.

A socket that delivers a large body is read once and then waits here, too: of all of these one is read in a turn, or a
few where turns are long.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
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

_NO_TIME_S = float("-inf")
"""For a connection that is behind: it reads a request or so."""

LARGE_READ_BYTES = 64 * 1024
"""A read after which a connection pauses (`put_off`). Of what a socket holds uvloop would read up to 8 MB before anybody
else is served, and that takes 5 to 10 ms."""

_MAX_AT_ONCE = 16
"""Connections that read in one turn: each reads at least a request or two, however small its share of time is. While
others keep up, so many as there is time for: sixteen took 1 to 2 ms."""

MOST_BEGUN = 32
"""Requests whose work begins in one turn. What is under way takes a few turns until it is answered: without a bound, a flood
of which most is refused at once makes all turns long, and hardly anything else is answered. With 64 a spike at four times what can
be served got a quarter fewer answers; with 16 its calls over gRPC were mostly late."""

_MORE_BEGUN_PER_S, _MOST_BEGUN_EVER = 4000, 128
"""More of them for each second that the turn before took. A turn may be long because this process is not run: so many a second
begin in any case, and if all are refused that takes a third of the time. The second is a bound on that, where each takes
longer than thought: a longer turn must not make the next one longer still."""

_READS_FOR_ONE, _READING_PART, _MOST_READING_S = 4, 0.25, 0.005
"""Reads at most for each request that begins, since most of which none does, as it is refused unread, cost little; a part of the
turn before that they take at most, and a bound on that: a long turn must not make the next one as long."""


class WaitingRequest(Protocol):
    """A request that has been read, and whose work has not begun."""

    def begin(self) -> None:
        """Begin its work; nothing where its client has left meanwhile."""


class BackloggedConnection(Protocol):
    """A connection with a backlog."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more is read of it: to go on is to cancel some of its requests."""

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
        self._begun = 0
        """Requests whose work has begun in this turn."""
        self.came = 0
        """Requests that have come since connections that are behind have read: those that begin, and those that connections have
        answered unparsed, which they count."""
        self._waiting: deque[WaitingRequest] = deque()
        self._most_begun, self._turn_began_s = MOST_BEGUN, 0.0

    def begin(self, request: WaitingRequest) -> bool:
        """Begin a request's work: now, or in one of the next turns where that of many has begun in this one. Returns whether it has
        begun; a connection that has one that waits reads no more until then, so that few of each client wait."""
        self.came += 1
        if self._begun >= self._most_begun:
            self._waiting.append(request)
            return False
        if not self._begun:
            self._turn_began_s = self.now_s()
            asyncio.get_running_loop().call_soon(self._begin_waiting)
        self._begun += 1
        request.begin()
        return True

    def _begin_waiting(self) -> None:
        """Begin the next turn, with those that have waited longest."""
        now_s = self.now_s()
        self._most_begun = min(MOST_BEGUN + int(_MORE_BEGUN_PER_S * (now_s - self._turn_began_s)), _MOST_BEGUN_EVER)
        self._turn_began_s = now_s
        self._begun = min(self._most_begun, len(self._waiting))
        if self._begun:
            asyncio.get_running_loop().call_soon(self._begin_waiting)
        for _ in range(self._begun):
            self._waiting.popleft().begin()

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
        took_s = now_s - self._ran_at_s
        if is_shared and self.came and took_s >= _REST_S:
            self._read_requests(self.came, now_s + min(_READING_PART * took_s, _MOST_READING_S))
            self._read_sockets(_SOCKETS_AT_ONCE)
            self._has_read()
        elif is_shared and self._rested < _REST_TURNS and took_s < _REST_S:
            self._rested += 1
        else:
            self._read(now_s, is_shared=is_shared)
            self._read_sockets(_SOCKETS_AT_ONCE if took_s >= _REST_S else 1)
            self._has_read()
        self._is_running = bool(self._behind or self._paused)
        if self._is_running:
            asyncio.get_running_loop().call_soon(self._run)

    def _has_read(self) -> None:
        self._rested = self.came = 0
        self._ran_at_s = self.now_s()

    def _read_requests(self, count: int, until_s: float) -> None:
        """Let those that are behind read so many requests that begin, but no more than begin in a turn, one each after the other: turns
        are long, so that a small part of time would be less than what others get."""
        until = self.came + min(count, self._most_begun)
        has_ended = False
        for _ in range(_READS_FOR_ONE * count):
            if not self._behind or self.came >= until or self.now_s() >= until_s:
                return
            connection = next(iter(self._behind))
            del self._behind[connection]
            if connection.is_over:
                if has_ended:  # one in a turn: what it cancels takes its time in the next one
                    self._behind[connection] = None
                    continue
                has_ended = True
            if connection.read_backlog(_NO_TIME_S):
                self._behind[connection] = None

    def _read(self, now_s: float, *, is_shared: bool) -> None:
        """Let those that are behind read for a while."""
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

    def _read_sockets(self, count: int) -> None:
        """Let so many read their sockets that have paused."""
        for paused in tuple(islice(self._paused, count)):
            del self._paused[paused]
            paused.read_socket()
