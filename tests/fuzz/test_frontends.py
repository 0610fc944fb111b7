"""Whatever bytes a client sends: no exception that nobody expected, no hang, no task left, and the next client is served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from hypothesis import example, given, settings

from control_plane.core.errors import UpstreamUnavailable
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.grpc.limits import GrpcLimits
from control_plane.frontends.grpc.server import GrpcServer
from control_plane.frontends.kserve.grpc import V2Grpc
from control_plane.frontends.kserve.services import KServeServices
from control_plane.host.network.listening import bind_tcp
from control_plane.inference.inference import InferenceService
from control_plane.protocols.grpc import GrpcAnswer, GrpcHead, message_answer
from control_plane.protocols.http2.frames import DATA, PREFACE, FrameReader, settings_frame
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.triton.ports import GrpcCall, GrpcStream
from control_plane.triton.servers import Servers
from tests.fakes import FakeModels, FakeRecorder, FakeUpstream
from tests.fakes.governance import governance
from tests.fuzz.traffic import HTTP2_TRAFFIC, HTTP_TRAFFIC, LIVE_CALL
from tests.wire.gateway import LIVE, gateway

PATIENCE_S = 10.0
"""For the server to end a connection whose client has said all it will say. It should take a moment."""


@contextmanager
def no_defect() -> Iterator[None]:
    """What tasks' roots caught, and only logged, fails the test."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("control_plane").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("control_plane").removeHandler(handler)
    assert not records, [(record.getMessage(), record.exc_info) for record in records]


async def said_to(port: int, pieces: list[bytes]) -> bytes:
    """Say these and no more, and take what comes until the server ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            await asyncio.sleep(0.002)  # what is whole is answered; leaving at once would cancel it
            writer.write_eof()
            received = await reader.read()
    except (ConnectionError, RuntimeError):  # the server was done with it already
        pass
    finally:
        writer.transport.abort()
    return received


@given(pieces=HTTP_TRAFFIC)
@example(pieces=[b"\0"])
@settings(max_examples=60)
async def test_the_http_frontend(pieces: list[bytes]) -> None:
    with no_defect():
        async with gateway() as frontend:
            received = await said_to(frontend.port, pieces)
            assert not received or received.startswith(b"HTTP/1.1 ")
            client = await frontend.connect()
            assert (await client.ask(LIVE)).status == 200


class Echoing:
    """`triton/ports.GrpcUpstream` without a Triton."""

    async def unary(self, call: GrpcCall, *, timeout_s: float, slot: object = None) -> GrpcAnswer:
        return message_answer(bytes(call.frame)[5:])

    async def open_stream(self, head: GrpcHead, *, timeout_s: float) -> GrpcStream:
        raise UpstreamUnavailable("there is none")

    async def close(self) -> None: ...


@asynccontextmanager
async def grpc_frontend() -> AsyncIterator[int]:
    """The gRPC frontend on a port of its own."""
    servers, recorder, budget = Servers(), FakeRecorder(), BodyBudget(1 << 20)
    servers.up(FakeUpstream(grpc=Echoing()))  # type: ignore[arg-type]
    governed = governance()
    inference = InferenceService(servers=servers, recorder=recorder, governance=governed, default_timeout_s=5.0)
    kserve = KServeServices(
        inference=inference,
        access=governed.access,
        servers=servers,
        models=FakeModels(),
        budget=budget,
        limits=BodyLimits(max_body_bytes=1 << 16),
        read_timeout_s=5.0,
    )
    application = V2Grpc(kserve)
    server = GrpcServer(application, GrpcLimits(max_message_bytes=1 << 16, max_connections=10), budget)
    bound = bind_tcp("127.0.0.1", 0, setting="--grpc-port")
    async with asyncio.TaskGroup() as tasks:
        await server.listen(tasks, bound)
        try:
            yield bound.getsockname()[1]
        finally:
            await server.drain(0)
    assert budget.held_bytes == 0, "memory for messages was not given back"


@given(pieces=HTTP2_TRAFFIC)
@example(pieces=[PREFACE])
@settings(max_examples=60)
async def test_the_grpc_frontend(pieces: list[bytes]) -> None:
    with no_defect():
        async with grpc_frontend() as port:
            received = await said_to(port, pieces)
            assert not received or received[3] == 4, "the first frame is SETTINGS"
            assert await is_live(port)


async def is_live(port: int) -> bool:
    """Whether ServerLive is answered on a new connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    frames = FrameReader(1 << 20)
    try:
        writer.write(PREFACE + settings_frame({}) + LIVE_CALL)
        async with asyncio.timeout(PATIENCE_S):
            while data := await reader.read(1 << 16):
                for kind, _, stream_id, payload in frames.feed(data):
                    if (kind, stream_id) == (DATA, 1):
                        return payload.endswith(b"\x08\x01")
        return False
    finally:
        writer.transport.abort()


def test_a_defect_would_be_seen() -> None:
    with pytest.raises(AssertionError, match="unexpected"), no_defect():
        logging.getLogger("control_plane.frontends").error("unexpected; this is a defect")
