"""An HTTP/1.1 server on asyncio transports: the front of the data plane and of the metrics page.

Not ASGI: this is the hot path, and a hop must cost about what nginx's does. The application is a coroutine
`HttpRequest -> HttpAnswer` that does not raise.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from control_plane.api.http_connection import Application, HttpConnection, HttpLimits, RenderError


class HttpServer:
    """Listens on one address and hands every request to `application`."""

    def __init__(self, application: Application, render_error: RenderError, limits: HttpLimits) -> None:
        self.application = application
        self.render_error = render_error
        self.limits = limits
        self.is_draining = False
        self._connections: set[HttpConnection] = set()
        self._listener: asyncio.Server | None = None
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    async def listen(self, tasks: asyncio.TaskGroup, listening: socket.socket) -> None:
        """Accept connections on a bound socket; their tasks belong to `tasks`."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: HttpConnection(self, tasks), sock=listening)

    async def drain(self, timeout_s: float) -> None:
        """Accept no more, let requests in flight finish for `timeout_s` at most, then close what is left."""
        self.is_draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._connections):
            connection.close_when_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._all_closed.wait()
        for connection in tuple(self._connections):
            connection.abort()

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
