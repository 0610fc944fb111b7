"""What both doors' servers have in common: listeners on ports and Unix sockets, a bounded set of connections, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from control_plane.auth.domain.source import Source
from control_plane.frontends.common.connection_limits import Network, PortConnections
from control_plane.frontends.common.read_scheduler import ReadScheduler
from control_plane.host.exposure import is_loopback

_log = logging.getLogger(__name__)

_TLS_GOODBYE_S = 0.5
"""For a client to answer our closing of a TLS connection. One that is idle does not read, and would hold up a drain to its end."""

_MAX_SWEEP_S = 1.0
"""Between two looks at the time of all connections: time-outs are late by this much at most, and requests need no timers."""

_BACKLOG = 1024
_ACCEPT_PAUSE_S = 0.1
"""After a connection that could not be accepted, such as for want of descriptors."""

_SWEEPS_PER_TIMEOUT = 4
_CHECKED_AT_ONCE = 32
_WARN_EVERY_S = 60.0


class Limits(Protocol):
    """What a server holds its clients to, as far as both do."""

    @property
    def max_connections(self) -> int: ...

    @property
    def source_share(self) -> float: ...

    @property
    def trusted_proxies(self) -> Sequence[Network]: ...

    @property
    def header_timeout_s(self) -> float: ...

    @property
    def body_timeout_s(self) -> float: ...

    @property
    def idle_timeout_s(self) -> float: ...


class Connection(Protocol):
    """A client's connection, as far as its server has to know it."""

    def check_time(self, now_s: float) -> None:
        """Called now and then: end what has made no progress for too long."""

    def leave(self) -> None:
        """Take no new requests, and close when those under way have been answered."""

    def abort(self) -> None: ...


ConnectionT = TypeVar("ConnectionT", bound=Connection)


class ConnectionServer(Generic[ConnectionT]):
    """Listens on any number of sockets; a connection tells of itself by `opened` and `closed`."""

    def __init__(self, limits: Limits) -> None:
        shortest_s = min(limits.header_timeout_s, limits.body_timeout_s, limits.idle_timeout_s or _MAX_SWEEP_S)
        self.is_draining = False
        self.reads = ReadScheduler()
        self._max_connections = limits.max_connections
        self._held = PortConnections(limits.max_connections, share=limits.source_share, exempt=limits.trusted_proxies)
        self._shaken: dict[object, Source] = {}
        """Connections that were let in before their TLS handshake, which is not over yet, and for whom they count."""
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting: list[tuple[asyncio.Task[None], socket.socket]] = []
        self._handshake_timeout_s = limits.header_timeout_s
        self._pause_s = min(_MAX_SWEEP_S, shortest_s / _SWEEPS_PER_TIMEOUT)
        self._connections: dict[ConnectionT, Source] = {}
        self._listeners: list[asyncio.Server] = []
        self._sweeping: asyncio.Handle | None = None
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._may_warn_at_s = 0.0

    async def accept_on(
        self, listening: socket.socket, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None, tasks: asyncio.TaskGroup
    ) -> None:
        """Accept connections on a bound socket; whoever does not finish a TLS handshake in time is let go."""
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if listening.family == socket.AF_UNIX else loop.create_server
        if tls is None:
            self._listeners.append(await create(make, sock=listening))
        else:
            listening.listen(_BACKLOG)
            accepting = tasks.create_task(self._accept_tls(listening, make, tls, tasks), name="tls-accept")
            self._accepting.append((accepting, listening))
        if self._sweeping is None:
            self._sweep()

    async def drain(self, timeout_s: float) -> None:
        """Accept no more, let what is in flight finish for `timeout_s` at most, then close what is left."""
        self.is_draining = True
        for listener in self._listeners:
            listener.close()
        for accepting, listening in self._accepting:
            accepting.cancel()
            await asyncio.wait((accepting,))
            listening.close()
        for shaking in tuple(self._handshakes):
            shaking.cancel()
        for connection in tuple(self._connections):
            connection.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._all_closed.wait()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in tuple(self._connections):
            connection.abort()

    async def _accept_tls(
        self, listening: socket.socket, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext, tasks: asyncio.TaskGroup
    ) -> None:
        """Not the loop's own server: that one tells of a connection when its handshake is over, and any number could be in theirs."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as exc:
                _log.warning("a connection could not be accepted: %s", exc)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            source = self._held.take(address[0] if isinstance(address, tuple) else "")
            if source is None:
                self._warn()
                accepted.close()
            else:
                shaking = tasks.create_task(self._shake_hands(accepted, source, make(), tls), name="tls-handshake")
                self._handshakes.add(shaking)
                shaking.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, source: Source, connection: asyncio.Protocol, tls: ssl.SSLContext) -> None:
        self._shaken[connection] = source
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=self._handshake_timeout_s,
                ssl_shutdown_timeout=_TLS_GOODBYE_S,
            )
        except OSError:  # which TLS's errors and time-outs are
            pass
        except Exception:
            _log.exception("a TLS handshake failed; this is a defect")
        finally:
            if self._shaken.pop(connection, None) is not None:
                self._held.give(source)

    def opened(self, connection: ConnectionT, address: str) -> bool:
        """Take a connection in from there; False when there are too many."""
        source = self._shaken.pop(connection, None)
        if source is None:
            source = self._held.take(address)
        if source is None or self.is_draining:
            if source is not None:
                self._held.give(source)
            self._warn()
            return False
        self._connections[connection] = source
        self._all_closed.clear()
        return True

    def closed(self, connection: ConnectionT) -> None:
        source = self._connections.pop(connection, None)
        if source is not None:
            self._held.give(source)
        if not self._connections:
            self._all_closed.set()

    def _sweep(self) -> None:
        self._check_some(list(self._connections))

    def _check_some(self, left: list[ConnectionT]) -> None:
        """A few at a time: 4,096 together take 20 ms, in which nobody is served."""
        loop = asyncio.get_running_loop()
        for _ in range(min(_CHECKED_AT_ONCE, len(left))):
            connection = left.pop()
            if connection in self._connections:
                connection.check_time(loop.time())
        self._sweeping = loop.call_soon(self._check_some, left) if left else loop.call_later(self._pause_s, self._sweep)

    def _warn(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if not self.is_draining and now_s >= self._may_warn_at_s:
            self._may_warn_at_s = now_s + _WARN_EVERY_S
            _log.warning(
                "connections are refused: %d are open, of %d that the port takes and a part of that for one source "
                "(TIDEGATE_MAX_CONNECTIONS, TIDEGATE_ADMIN_MAX_CONNECTIONS, TIDEGATE_SOURCE_SHARE)",
                len(self._held),
                self._max_connections,
            )


def address_of(transport: asyncio.BaseTransport) -> str:
    """The client's address without its port; empty for one on a Unix socket."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


def is_local(transport: asyncio.BaseTransport) -> bool:
    """Whether the client is on this machine; one on a Unix socket has no address."""
    peer = transport.get_extra_info("peername")
    return not isinstance(peer, tuple) or is_loopback(peer[0])
