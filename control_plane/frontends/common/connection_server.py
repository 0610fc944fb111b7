"""Base of the HTTP and gRPC servers: listeners on ports and Unix sockets, a bounded set of connections,
time-outs, drain.

It knows no protocol; a connection reports itself by `opened` and `closed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
from collections.abc import Callable, Sized
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar, cast

from control_plane.auth.domain.source import Source, source_of_address
from control_plane.core.errors import ControlPlaneError, GatewayStopping
from control_plane.frontends.common.breaches import Breaches, HeldBack, ReadingConnection
from control_plane.frontends.common.connection_limits import ConnectionLimits, PortConnections
from control_plane.frontends.common.read_scheduler import ReadScheduler
from control_plane.host.network.accept_failures import AcceptFailures
from control_plane.host.network.exposure import is_loopback

_log = logging.getLogger(__name__)

_TLS_SHUTDOWN_S = 0.5
"""Seconds for a client to answer our TLS close_notify. An idle client does not read, and would delay a drain
to its end."""

_MAX_SWEEP_S = 1.0
"""Longest time between two sweeps, which check the time-outs of all connections. Time-outs are late by this
at most, and in return no request needs a timer."""

_BACKLOG = 1024
_ACCEPTED_AT_ONCE, _ACCEPTED_PER_S = 32, 1280
"""Connections that a listener accepts in one turn of the loop at most, and how many a second beside the first: each takes 0.2 ms, so
that where turns are short, one in each is enough, and more would hold others up."""
_ACCEPT_PAUSE_S = 0.1
"""Pause after a failed accept, such as for lack of file descriptors: the listener stays readable and would
spin the loop."""

_LOOKED_AT_FOR_ROOM = 8
"""Connections of a source that are examined when one of them has to make room; it bounds the cost of a
connection flood."""

_SWEEPS_PER_TIMEOUT = 4
_CHECKED_AT_ONCE, _CHECKED_FOR_S = 32, 0.001
"""Connections whose time-outs are checked in one turn of the loop, and for how long at most: one over gRPC may have a
thousand calls, which take a millisecond by themselves."""
_WARN_EVERY_S = 60.0

_PEER = struct.Struct("3i")
"""`struct ucred` of unix(7): process, user, group."""

_LAST_WORDS_S = 0.5
"""Seconds at the end of a drain for the refusals of what it cut short to reach their clients."""


class Connection(Protocol):
    """A server's view of one client's connection."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight or has begun to arrive, so that closing the connection loses
        nothing."""

    def enforce_timeouts(self, now_s: float) -> None:
        """Enforce the time-outs: end whatever has made no progress for too long. Called by each sweep."""

    def leave(self) -> None:
        """Drain: accept no new requests, and close when those in flight have been answered."""

    def refuse_rest(self, error: ControlPlaneError) -> None:
        """End of the drain: answer with `error` whatever is still in flight, as far as its protocol allows,
        and close."""

    def abort(self) -> None: ...


ConnectionT = TypeVar("ConnectionT", bound=Connection)


class ConnectionServer(Generic[ConnectionT]):
    """Server for any number of listening sockets, with connection limits, time-out sweeps and drain."""

    def __init__(self, limits: ConnectionLimits, reads: ReadScheduler | None = None) -> None:
        """`reads` is the scheduler of all connections of this event loop that may flood; None: one of its own."""
        shortest_s = min(limits.header_timeout_s, limits.body_timeout_s, limits.idle_timeout_s or _MAX_SWEEP_S)
        self.is_draining = False
        """Whether each answer asks its client to close its connection; new ones may still be accepted."""
        self.reads = reads or ReadScheduler()
        self._max_connections = limits.max_connections
        self._held = PortConnections(limits.max_connections, share=limits.source_share, exempt=limits.trusted_proxies)
        self._breaches = Breaches()
        self._unopened: dict[object, Source] = {}
        """Connections that were accepted and are not open yet, with the source that they are counted for."""
        self._openings: dict[asyncio.Task[None], object] = {}
        """Tasks that open connections, each with its connection; one that is open is no longer among the unopened."""
        self._accepting: list[tuple[asyncio.Task[None], socket.socket]] = []
        self._handshake_timeout_s = limits.header_timeout_s
        self._pause_s = min(_MAX_SWEEP_S, shortest_s / _SWEEPS_PER_TIMEOUT)
        self._connections: dict[ConnectionT, Source] = {}
        self.connected: Sized = self._connections.keys()
        self._by_source: dict[Source, dict[ConnectionT, None]] = {}
        """The connections by source, each a second-chance (CLOCK) queue: connections found busy move to its
        end."""
        self._processes: dict[ConnectionT, Source] = {}
        """The process at the other end of each connection of a Unix socket. Breaches are counted by it: together these
        processes are one source, in which one that is wrong would have all others wait."""
        self._accepts = True
        self._sweeping: asyncio.Handle | None = None
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._may_warn_at_s = 0.0

    async def accept_on(
        self, listening: socket.socket, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None, tasks: asyncio.TaskGroup
    ) -> None:
        """Accept connections on a bound socket; a client that does not finish its TLS handshake in time is
        dropped."""
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        accepting = tasks.create_task(self._accept(listening, make, tls, tasks), name="accept")
        self._accepting.append((accepting, listening))
        if self._sweeping is None:
            self._sweep()

    def announce_drain(self) -> None:
        """Announce the drain to clients with their next answers, so that few have a connection when it begins.

        A client that finds its idle connection closed cannot tell whether its request was taken.
        """
        self.is_draining = True

    async def drain(self, timeout_s: float) -> None:
        """Drain: accept no more, let requests in flight finish for `timeout_s` at most, then refuse what is
        left. A second call with less time cuts the first one short."""
        self.is_draining = True
        for accepting, listening in self._accepting:
            accepting.cancel()
            _stop_listening(listening)
        if self._unopened:
            await asyncio.sleep(0)  # what has just been accepted begins to be opened, and from then on is closed by whoever opens it
        self._accepts = False
        for opening, connection in tuple(self._openings.items()):
            if connection in self._unopened:  # one that has been opened ends by itself, and would not if its opening were cancelled
                opening.cancel()
        for opened in tuple(self._connections):
            opened.leave()
        for accepting, listening in self._accepting:
            await asyncio.wait((accepting,))  # the loop must not watch a descriptor that is closed, and perhaps reused
            listening.close()
        await self._wait_until_closed(timeout_s)
        # A copy each time: whoever closes leaves the dictionary at once.
        for connection in tuple(self._connections):
            connection.refuse_rest(GatewayStopping())
        await self._wait_until_closed(_LAST_WORDS_S)
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in tuple(self._connections):
            connection.abort()

    async def _wait_until_closed(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            # Not asyncio.timeout: a drain may be cancelled, and that of Python before 3.11.3 raises CancelledError
            # in a task that is (gh-102780).
            await asyncio.wait_for(self._all_closed.wait(), timeout_s)

    async def _accept(
        self, listening: socket.socket, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None, tasks: asyncio.TaskGroup
    ) -> None:
        """Accept and count connections, before their handshake where they have one.

        The event loop's own server reports a connection only after its handshake, so any number of clients
        that never finish theirs could hold file descriptors. And it accepts one in a turn: while turns are long, those who
        come anew would wait for seconds behind a thousand others who do.
        """
        loop, failures, accepted_s = asyncio.get_running_loop(), AcceptFailures(), float("-inf")
        while True:
            try:
                await _until_readable(listening)
                with contextlib.suppress(BlockingIOError):  # another worker was faster, or there are no more
                    # Not by the loop, which takes a turn for each, and loses one that comes as this task is cancelled.
                    self._take_on(*listening.accept(), make, tls, tasks)
                    before_s, accepted_s = accepted_s, loop.time()
                    failures.accepted(accepted_s)
                    for _ in range(int(min(_ACCEPTED_AT_ONCE - 1, _ACCEPTED_PER_S * (accepted_s - before_s)))):
                        self._take_on(*listening.accept(), make, tls, tasks)
            except OSError as exc:
                failures.failed(exc, loop.time())
                await asyncio.sleep(_ACCEPT_PAUSE_S)

    def _take_on(
        self,
        accepted: socket.socket,
        address: Any,
        make: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Count an accepted connection and open it, or close it where there are too many."""
        accepted.setblocking(False)
        source = self._admit(address[0] if isinstance(address, tuple) else "")
        if source is None:
            self._warn()
            accepted.close()
        else:
            connection = make()
            self._unopened[connection] = source
            opening = tasks.create_task(self._open(accepted, connection, tls), name="connecting")
            self._openings[opening] = connection
            opening.add_done_callback(self._opening_ended)

    def _opening_ended(self, opening: asyncio.Task[None]) -> None:
        """Count a connection no more that was not opened; else `opened` has taken it over."""
        source = self._unopened.pop(self._openings.pop(opening), None)
        if source is not None:
            self._held.release(source)

    async def _open(self, accepted: socket.socket, connection: asyncio.Protocol, tls: ssl.SSLContext | None) -> None:
        timeouts = {} if tls is None else {"ssl_handshake_timeout": self._handshake_timeout_s, "ssl_shutdown_timeout": _TLS_SHUTDOWN_S}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, ssl=tls, **timeouts)
        except OSError:  # also the base class of TLS errors and of time-outs
            pass
        except Exception:
            _log.exception("a connection could not be opened; this is a defect")

    def opened(self, connection: ConnectionT, address: str) -> bool:
        """Register a connection from `address`; False if there are too many, and the connection must abort
        itself."""
        # It was counted before its handshake (`_accept`).
        source = self._unopened.pop(connection, None)
        if source is None:
            source = self._admit(address)
        if source is None or not self._accepts:
            if source is not None:
                self._held.release(source)
            self._warn()
            return False
        self._connections[connection] = source
        self._by_source.setdefault(source, {})[connection] = None
        self._all_closed.clear()
        return True

    def begin_reading(self, connection: ConnectionT, transport: asyncio.Transport) -> None:
        """Have a registered connection read, after a pause where its source, unless that is a trusted proxy, has broken the
        protocol again and again."""
        process = process_of(transport)
        if process is not None:
            self._processes[connection] = process
        if not self._breaches.sources or self._held.is_exempt(address_of(transport)):
            return
        source = self._connections[connection] if process is None else process
        pause_s = self._breaches.pause_s(source, asyncio.get_running_loop().time())
        if pause_s:
            HeldBack(cast("ReadingConnection", connection), transport, pause_s)

    def breached(self, connection: ConnectionT) -> None:
        """Note that a connection is ended because its client has broken the protocol."""
        source = self._processes.get(connection) or self._connections.get(connection)
        if source is not None:
            self._breaches.breached(source, asyncio.get_running_loop().time())

    def closed(self, connection: ConnectionT) -> None:
        """Forget a connection that has closed; idempotent."""
        source = self._connections.pop(connection, None)
        if source is not None:
            self._processes.pop(connection, None)
            self._held.release(source)
            of_source = self._by_source[source]
            del of_source[connection]
            if not of_source:
                del self._by_source[source]
        if not self._connections:
            self._all_closed.set()

    def _admit(self, address: str) -> Source | None:
        """Count one more connection from `address`; if its source has too many, close an idle one of them for
        it."""
        source = self._held.acquire(address)
        if source is None and self._accepts and self._close_an_idle_one(source_of_address(address)):
            source = self._held.acquire(address)
        return source

    def _close_an_idle_one(self, source: Source) -> bool:
        """Close about the longest idle connection of a source; False if none of the few that are examined is
        idle.

        A source that fills its share with idle connections would otherwise shut out its own health checks.
        """
        queue = self._by_source.get(source, {})
        for connection in list(islice(queue, _LOOKED_AT_FOR_ROOM)):
            if connection.is_idle:
                connection.abort()
                self.closed(connection)  # at once: `connection_lost` comes a turn of the loop later, and the room is needed now
                return True
            queue[connection] = queue.pop(connection)
        return False

    def _sweep(self) -> None:
        self._check_some(list(self._connections))

    def _check_some(self, left: list[ConnectionT]) -> None:
        """Check a few connections in each turn of the loop: all 4,096 at once would block it for 20 ms."""
        loop, until_s = asyncio.get_running_loop(), self.reads.now_s() + _CHECKED_FOR_S
        for _ in range(min(_CHECKED_AT_ONCE, len(left))):
            connection = left.pop()
            if connection in self._connections:
                connection.enforce_timeouts(loop.time())
            if self.reads.now_s() >= until_s:
                break
        self._sweeping = loop.call_soon(self._check_some, left) if left else loop.call_later(self._pause_s, self._sweep)

    def _warn(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._accepts and now_s >= self._may_warn_at_s:
            self._may_warn_at_s = now_s + _WARN_EVERY_S
            _log.warning(
                "connections are refused: %d are open, of %d that the port takes and a part of that for one source "
                "(TIDEGATE_MAX_CONNECTIONS, TIDEGATE_ADMIN_MAX_CONNECTIONS, TIDEGATE_SOURCE_SHARE)",
                len(self._held),
                self._max_connections,
            )


async def _until_readable(listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(listening, is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(listening)


def address_of(transport: asyncio.BaseTransport) -> str:
    """The client's IP address; empty for a client on a Unix socket."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


def process_of(transport: asyncio.BaseTransport) -> str | None:
    """Id of the process at the other end of a Unix socket, and of its user; None for other sockets.

    All processes that this one's namespace does not show have id 0, so they are told apart by user only.
    """
    held = transport.get_extra_info("socket")
    if held is None or held.family != socket.AF_UNIX:
        return None
    process, user, _ = _PEER.unpack(held.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return f"process {process} of user {user}"


def is_local(transport: asyncio.BaseTransport) -> bool:
    """Whether the client is on this machine, by a Unix socket or a loopback address."""
    peer = transport.get_extra_info("peername")
    return not isinstance(peer, tuple) or is_loopback(peer[0])


def _stop_listening(listening: socket.socket) -> None:
    """Let the kernel give a TCP socket no more connections, also if another process has it: closing it here would
    not be enough (a worker's parent has its sockets). A Unix socket is one for all workers, so it goes on."""
    if listening.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):  # it has been closed, or shut down, before
            listening.shutdown(socket.SHUT_RD)
