"""An HTTP/1.1 server on asyncio transports: the front of the data plane and of the metrics page.

Not ASGI: this is the hot path, and a hop must cost about what nginx's does. The application is a coroutine
`HttpRequest -> HttpAnswer | HttpStream` that does not raise.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.connection_server import ConnectionServer
from control_plane.frontends.http.connection import AnswerAtOnce, AnswerKnown, Application, HttpConnection, RenderError
from control_plane.frontends.http.request_reader import Admit, HttpLimits
from control_plane.host.exposure import AllowedHosts
from control_plane.protocols.http1 import HttpAnswer, HttpRequest


def admit_all(request: HttpRequest) -> None:
    """For an application that takes no bodies worth refusing early."""


def answer_later(request: HttpRequest, message: bytes) -> HttpAnswer | None:
    """For an application that has nothing to say without waiting."""
    return None


def know_nothing(message: bytes) -> bytes | None:
    """For an application that looks at each request."""
    return None


class HttpServer(ConnectionServer[HttpConnection]):
    """Hands every request to `application`; `admit` sees its head first.

    What `answer_at_once` answers needs no turn of the loop, and what `answer_known` answers need not even be read.
    """

    def __init__(
        self,
        application: Application,
        render_error: RenderError,
        limits: HttpLimits,
        *,
        admit: Admit = admit_all,
        answer_at_once: AnswerAtOnce = answer_later,
        answer_known: AnswerKnown = know_nothing,
        budget: BodyBudget | None = None,
        hosts: AllowedHosts | None = None,
    ) -> None:
        """`hosts` are the names that callers over ports may ask by; None: any."""
        super().__init__(limits)
        self.application = application
        self.render_error = render_error
        self.admit = admit
        self.answer_at_once = answer_at_once
        self.answer_known = answer_known
        self.limits = limits
        self.hosts = hosts
        self.budget = budget or BodyBudget(limits.max_body_bytes)

    async def listen(self, tasks: asyncio.TaskGroup, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a bound socket, one of several perhaps; their tasks belong to `tasks`."""
        await self.accept_on(listening, lambda: HttpConnection(self, tasks), tls, tasks)
