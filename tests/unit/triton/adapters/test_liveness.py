from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from control_plane.core.endpoints import TritonEndpoints
from control_plane.triton.adapters.connected import UpstreamClient
from control_plane.triton.adapters.liveness import LivenessProbeClient
from control_plane.triton.ports import Liveness
from tests.unit.triton.adapters.fake_grpc_server import FakeServer, Handler, never, serving
from tests.unit.triton.adapters.scripted_triton import Exchange, Script, ScriptedTriton, scripted_triton

LONG_S = 60.0


class Live:
    """Handler that notes from which connections it was asked."""

    def __init__(self) -> None:
        self.peers = set[str]()

    async def __call__(self, message: bytes, context: Any) -> bytes:
        self.peers.add(context.peer())
        return await live(message, context)

    async def never(self, message: bytes, context: Any) -> bytes:
        self.peers.add(context.peer())
        return await never(message, context)


async def live(message: bytes, context: Any) -> bytes:
    return service_pb2.ServerLiveResponse(live=True).SerializeToString()


async def not_live(message: bytes, context: Any) -> bytes:
    return service_pb2.ServerLiveResponse(live=False).SerializeToString()


async def over_http(exchange: Exchange) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


async def never_over_http(exchange: Exchange) -> bytes:
    await asyncio.Event().wait()
    return b""


@asynccontextmanager
async def probing(
    over_grpc: Handler, http: Script = never_over_http
) -> AsyncIterator[tuple[LivenessProbeClient, FakeServer, ScriptedTriton]]:
    async with serving(over_grpc) as grpc_server, scripted_triton(http) as http_server:
        probe = LivenessProbeClient(TritonEndpoints("127.0.0.1", http_server.port, grpc_server.port, None))
        try:
            yield probe, grpc_server, http_server
        finally:
            await probe.close()


async def test_it_asks_over_grpc_and_keeps_its_connection() -> None:
    asked = Live()
    async with probing(asked) as (probe, _, _):
        for _ in range(3):
            assert await probe.ask(timeout_s=LONG_S) is Liveness.LIVE
        assert len(asked.peers) == 1


async def test_one_that_says_that_it_is_not_live() -> None:
    async with probing(not_live) as (probe, _, _):
        assert await probe.ask(timeout_s=LONG_S) is Liveness.NOT_LIVE


async def test_where_nobody_listens_it_is_not_live_at_once() -> None:
    async with probing(live) as (probe, grpc_server, _):
        assert await probe.ask(timeout_s=LONG_S) is Liveness.LIVE
        await grpc_server.stop()
        assert await probe.ask(timeout_s=LONG_S) is Liveness.NOT_LIVE


async def test_one_whose_grpc_is_busy_is_live_over_http() -> None:
    async with probing(never, over_http) as (probe, _, http_server):
        assert await probe.ask(timeout_s=LONG_S) is Liveness.LIVE
        assert http_server.exchanges[0].request.startswith(b"GET /v2/health/live HTTP/1.1\r\n")


async def test_one_that_answers_neither_is_silent_and_asked_over_new_connections_then() -> None:
    asked = Live()
    async with probing(asked.never) as (probe, grpc_server, http_server):
        assert await probe.ask(timeout_s=2.0) is Liveness.SILENT
        await http_server.wait_until_open(0)
        grpc_server.handle = asked
        assert await probe.ask(timeout_s=LONG_S) is Liveness.LIVE
        assert len(asked.peers) == 2


async def test_a_connection_that_was_closed_in_between_is_replaced() -> None:
    async with probing(live) as (probe, grpc_server, _):
        assert await probe.ask(timeout_s=LONG_S) is Liveness.LIVE
        port = grpc_server.port
        await grpc_server.stop()
        await grpc_server.start(port)
        assert await probe.ask(timeout_s=LONG_S) is Liveness.LIVE


async def refused_over_http(exchange: Exchange) -> bytes:
    return b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("over_grpc", "http", "is_serving"),
    [(live, over_http, True), (live, refused_over_http, False), (not_live, over_http, False)],
    ids=["over both", "over gRPC only", "over HTTP only"],
)
async def test_it_serves_once_it_is_live_over_both(over_grpc: Handler, http: Script, is_serving: bool) -> None:
    async with serving(over_grpc) as grpc_server, scripted_triton(http) as http_server:
        triton = UpstreamClient(TritonEndpoints("127.0.0.1", http_server.port, grpc_server.port, None), max_connections=1)
        assert await triton.is_serving() is is_serving
        await triton.close()


async def test_it_does_not_serve_yet_where_only_grpc_listens() -> None:
    async with serving(live) as grpc_server:
        triton = UpstreamClient(TritonEndpoints("127.0.0.1", 1, grpc_server.port, None), max_connections=1)
        assert not await triton.is_serving()
        await triton.close()


@pytest.mark.parametrize("after_s", [0.0, 0.3])
async def test_a_cancellation_leaves_nothing(after_s: float) -> None:
    async with probing(never) as (probe, _, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(after_s):
                await probe.ask(timeout_s=LONG_S)
