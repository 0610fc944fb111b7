"""What a connection uses of its server: the application, the limits, and its share of memory and read turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sized
from typing import Protocol, TypeVar

from control_plane.concurrency.turn_writes import TurnWrites
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.read_scheduler import ReadScheduler
from control_plane.frontends.http.limits import HttpLimits
from control_plane.frontends.http.requests.sink import Admit, Streams
from control_plane.host.network.exposure import AllowedHosts
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.per_request import PerRequestFields
from control_plane.triton.ports import HttpStream

ConnectionT = TypeVar("ConnectionT", contravariant=True)

Application = Callable[[HttpRequest], Awaitable[HttpAnswer | HttpStream]]
RenderError = Callable[[Exception, bytes], HttpAnswer]
"""Renders an error as the answer to a request for this target, which may be incomplete."""


class VerbatimAnswers(Protocol):
    """Port to the verbatim cache of an application."""

    fields: PerRequestFields
    """Lower-case names of the fields in which requests may differ that have the same answer."""

    entries: Sized
    """The cached answers, of which only the number is looked at: a connection asks for none while it is 0."""

    def answer(self, head: bytes, body: bytes) -> bytes | None:
        """The answer to the request of this body and this head's key (`protocols/head_template`); None: it has
        to be parsed."""


class ConnectionHost(Protocol[ConnectionT]):
    """Port of a connection to its server."""

    application: Application
    verbatim: VerbatimAnswers
    render_error: RenderError
    admit: Admit
    streams: Streams
    limits: HttpLimits
    hosts: AllowedHosts | None
    budget: BodyBudget
    is_draining: bool
    reads: ReadScheduler
    writes: TurnWrites
    connected: Sized
    """All connections, of which only the number is looked at."""

    def opened(self, connection: ConnectionT, address: str) -> bool: ...

    def closed(self, connection: ConnectionT) -> None: ...

    def begin_reading(self, connection: ConnectionT, transport: asyncio.Transport) -> None: ...

    def breached(self, connection: ConnectionT) -> None: ...
