"""An HTTP/1.1 server on asyncio transports: the front of the data plane and of the metrics page.

Not ASGI: this is the hot path, and a hop must cost about what nginx's does. The application is a coroutine
`HttpRequest -> HttpAnswer | HttpStream` that does not raise.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

from control_plane.api.body_budget import BodyBudget
from control_plane.api.http_connection import Application, HttpConnection, RenderError
from control_plane.api.http_reading import Admit, HttpLimits
from control_plane.api.listener import accept_on
from control_plane.codec.http_message import HttpRequest

_MAX_SWEEP_S = 1.0
"""Between two looks at the time of all connections: time-outs are late by this much at most, and requests need no timers."""

_SWEEPS_PER_TIMEOUT = 4


def admit_all(request: HttpRequest) -> None:
    """For an application that takes no bodies worth refusing early."""


class HttpServer:
    """Listens on any number of sockets and hands every request to `application`; `admit` sees its head first."""

    def __init__(
        self,
        application: Application,
        render_error: RenderError,
        limits: HttpLimits,
        *,
        admit: Admit = admit_all,
        budget: BodyBudget | None = None,
    ) -> None:
        self.application = application
        self.render_error = render_error
        self.admit = admit
        self.limits = limits
        self.budget = budget or BodyBudget(limits.max_body_bytes)
        self.is_draining = False
        self._connections: set[HttpConnection] = set()
        self._listeners: list[asyncio.Server] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    async def listen(self, tasks: asyncio.TaskGroup, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a bound socket; their tasks belong to `tasks`."""
        patience_s = self.limits.header_timeout_s
        self._listeners.append(await accept_on(listening, lambda: HttpConnection(self, tasks), tls=tls, handshake_timeout_s=patience_s))
        if self._sweeping is None:
            self._sweep_later()

    async def drain(self, timeout_s: float) -> None:
        """Accept no more, let requests in flight finish for `timeout_s` at most, then close what is left."""
        self.is_draining = True
        for listener in self._listeners:
            listener.close()
        for connection in tuple(self._connections):
            connection.close_when_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._all_closed.wait()
        for connection in tuple(self._connections):
            connection.abort()
        if self._sweeping is not None:
            self._sweeping.cancel()

    def opened(self, connection: HttpConnection) -> bool:
        """Take a connection in; False when there are too many."""
        if self.is_draining or len(self._connections) >= self.limits.max_connections:
            return False
        self._connections.add(connection)
        self._all_closed.clear()
        return True

    def closed(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def _sweep_later(self) -> None:
        limits = self.limits
        shortest_s = min(limits.header_timeout_s, limits.body_timeout_s, limits.idle_timeout_s or _MAX_SWEEP_S)
        pause_s = min(_MAX_SWEEP_S, shortest_s / _SWEEPS_PER_TIMEOUT)
        self._sweeping = asyncio.get_running_loop().call_later(pause_s, self._sweep)

    def _sweep(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for connection in tuple(self._connections):
            connection.check_time(now_s)
        self._sweep_later()
