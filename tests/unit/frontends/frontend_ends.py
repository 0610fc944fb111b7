"""Connections of both frontends without sockets: a recording transport, and servers with a trivial
application."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from control_plane.core.errors import Unauthenticated
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.grpc.connection import GrpcConnection
from control_plane.frontends.grpc.handler import GrpcHandler, VerbatimAnswers
from control_plane.frontends.grpc.limits import GrpcLimits
from control_plane.frontends.grpc.message_stream import MessageStream
from control_plane.frontends.grpc.server import GrpcServer
from control_plane.frontends.http.connection import HttpConnection
from control_plane.frontends.http.limits import HttpLimits
from control_plane.frontends.http.server import HttpServer
from control_plane.protocols.grpc import GrpcAnswer, GrpcHead, message_answer
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.ports import GrpcCall

ANSWER = make_answer(200, b"answer")
MAX_BODY_BYTES = 1 << 20


class Transport(asyncio.Transport):
    """Fake transport: records what a connection writes, and when it pauses and resumes reading."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.writes = 0
        self.is_paused = False
        self.is_closed = False
        self.has_eof = False
        self.protocol: asyncio.BaseProtocol | None = None
        """Whoever has taken the connection's place, for a while."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.has_eof
        self.written += data
        self.writes += 1

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0


class Clock:
    """Clock that advances by the time of a few frames whenever it is read."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += 0.00005
        return self._now_s


@dataclass
class Behind:
    """Fake application of both frontends: answers callers that show a key, and counts them."""

    handled: int = 0
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        self.handled += 1
        if not self.may_answer.is_set():
            await self.may_answer.wait()
        return ANSWER

    async def unary(self, call: GrpcCall) -> GrpcAnswer:
        self.handled += 1
        return message_answer(b"answer")

    async def stream(self, head: GrpcHead, messages: MessageStream, principal: Principal) -> GrpcAnswer:
        while await messages.receive() is not None:
            self.handled += 1
        return message_answer(b"answer")

    def handler_for(self, head: GrpcHead, *, peer: str, peer_is_local: bool) -> tuple[GrpcHandler, Principal]:
        if head.api_key is None:
            raise Unauthenticated("no key")
        return GrpcHandler(stream=self.stream) if head.method.endswith("ModelStreamInfer") else GrpcHandler(unary=self.unary), ANONYMOUS

    def verbatim_answers(self, *, max_header_bytes: int) -> VerbatimAnswers:
        return lambda call, waited_s: None


@dataclass
class Frontends:
    """A server of each frontend, and connections to them."""

    tasks: asyncio.TaskGroup
    behind: Behind = field(default_factory=Behind)

    def __post_init__(self) -> None:
        budget = BodyBudget(1 << 26)
        limits = HttpLimits(max_body_bytes=MAX_BODY_BYTES, max_header_bytes=16 << 10, max_connections=10_000)
        self.http = HttpServer(self.behind.answer, render_error, limits, budget=budget)
        self.grpc = GrpcServer(self.behind, GrpcLimits(max_message_bytes=MAX_BODY_BYTES, max_connections=10_000), budget)
        for server in (self.http, self.grpc):
            server.reads.now_s = Clock()

    def connect(self, frontend: str) -> tuple[HttpConnection | GrpcConnection, Transport]:
        connection = HttpConnection(self.http, self.tasks) if frontend == "http" else GrpcConnection(self.grpc, self.tasks)
        transport = Transport()
        connection.connection_made(transport)
        return connection, transport
