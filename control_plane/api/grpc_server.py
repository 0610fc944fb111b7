"""The gRPC data port: HTTP/2 on asyncio transports, like `http_server`.

Not grpc.aio: its hop costs about half a millisecond, ten times what a proxy may (perf/README.md has the comparison).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

from control_plane.api.body_budget import BodyBudget
from control_plane.api.grpc_connection import GrpcApplication, GrpcConnection, GrpcLimits
from control_plane.api.listener import accept_on
from control_plane.codec.http2_headers import KnownBlocks

_CHECK_EVERY_S = 1.0


class GrpcServer:
    """Accepts connections and hands their calls to `application`."""

    def __init__(self, application: GrpcApplication, limits: GrpcLimits, budget: BodyBudget) -> None:
        self.application = application
        self.limits = limits
        self.budget = budget
        self.known_blocks = KnownBlocks()
        self._connections: set[GrpcConnection] = set()
        self._listeners: list[asyncio.Server] = []
        self._is_draining = False
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._check: asyncio.TimerHandle | None = None

    async def listen(self, tasks: asyncio.TaskGroup, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a bound socket; may be called for several. Their tasks belong to `tasks`."""
        patience_s = self.limits.header_timeout_s
        self._listeners.append(await accept_on(listening, lambda: GrpcConnection(self, tasks), tls=tls, handshake_timeout_s=patience_s))
        if self._check is None:
            self._check_connections()

    async def drain(self, timeout_s: float) -> None:
        """Accept no more, let calls in flight finish for `timeout_s` at most, then close what is left."""
        self._is_draining = True
        for listener in self._listeners:
            listener.close()
        for connection in tuple(self._connections):
            connection.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._all_closed.wait()
        if self._check is not None:
            self._check.cancel()
        for connection in tuple(self._connections):
            connection.abort()

    def opened(self, connection: GrpcConnection) -> bool:
        """Take a connection in; False when there are too many."""
        if self._is_draining or len(self._connections) >= self.limits.max_connections:
            return False
        self._connections.add(connection)
        self._all_closed.clear()
        return True

    def closed(self, connection: GrpcConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def _check_connections(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in tuple(self._connections):
            connection.check(loop.time())
        self._check = loop.call_later(_CHECK_EVERY_S, self._check_connections)
