"""HTTP/1.1 server on asyncio transports, for the data port and the metrics port.

It is not built on ASGI: this is the hot path, and a hop must cost about as much as nginx's. The application
is a coroutine function `HttpRequest -> HttpAnswer | HttpStream`; what it raises is rendered by `render_error`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sized

from control_plane.concurrency.turn_writes import TurnWrites
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.connection_server import ConnectionServer
from control_plane.frontends.common.read_scheduler import ReadScheduler
from control_plane.frontends.http.connection import HttpConnection
from control_plane.frontends.http.connection_host import Application, RenderError, VerbatimAnswers
from control_plane.frontends.http.limits import HttpLimits
from control_plane.frontends.http.requests.sink import Admit, Streams, streams_none
from control_plane.host.network.exposure import AllowedHosts
from control_plane.protocols.http1 import HttpRequest
from control_plane.protocols.per_request import NO_FIELDS, PerRequestFields


def admit_all(request: HttpRequest) -> None:
    """Default `admit`, for an application whose bodies are too small to be worth refusing early."""


class _NoVerbatimAnswers:
    """Null `VerbatimAnswers`, for an application without a verbatim cache."""

    fields: PerRequestFields = NO_FIELDS
    entries: Sized = ()

    def answer(self, head: bytes, body: bytes) -> bytes | None:
        return None


_NO_VERBATIM_ANSWERS = _NoVerbatimAnswers()


class HttpServer(ConnectionServer[HttpConnection]):
    """HTTP server: accepts connections and passes each request to `application`, after `admit` has seen its
    head.

    Repeated requests have a fast path: `verbatim` answers by a request's bytes, before it is parsed.
    """

    def __init__(
        self,
        application: Application,
        render_error: RenderError,
        limits: HttpLimits,
        *,
        admit: Admit = admit_all,
        verbatim: VerbatimAnswers = _NO_VERBATIM_ANSWERS,
        budget: BodyBudget | None = None,
        hosts: AllowedHosts | None = None,
        streams: Streams = streams_none,
        reads: ReadScheduler | None = None,
    ) -> None:
        """`hosts` are the host names that clients over TCP may call; None: any. `streams` says of which requests the
        application receives the body piece by piece. `reads` as in `ConnectionServer`."""
        super().__init__(limits, reads)
        self.writes = TurnWrites()
        self.application = application
        self.render_error = render_error
        self.admit = admit
        self.streams = streams
        self.verbatim = verbatim
        self.limits = limits
        self.hosts = hosts
        self.budget = budget or BodyBudget(limits.max_body_bytes)

    async def listen(self, tasks: asyncio.TaskGroup, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a bound socket; may be called for several.

        The connections' tasks belong to `tasks`.
        """
        await self.accept_on(listening, lambda: HttpConnection(self, tasks), tls, tasks)
