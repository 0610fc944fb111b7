from __future__ import annotations

import asyncio
import socket

import pytest

from control_plane.core.endpoints import TcpAddress
from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import GrpcHead, frame_message
from control_plane.protocols.http1 import HttpRequest
from control_plane.regions.adapters import region_client
from control_plane.regions.adapters.region_client import RegionClient
from control_plane.regions.domain.region import Region
from control_plane.triton.ports import GrpcCall


def client_of(port: int) -> RegionClient:
    return RegionClient(
        "here", Region("there", TcpAddress("127.0.0.1", port), TcpAddress("127.0.0.1", port)), forwards="", max_answer_bytes=2**20
    )


async def probe(answer: bytes | None) -> int:
    """Probe a region that answers so, or not at all; return how often it was asked."""
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /v2/health/ready HTTP/1.1\r\n")
        if answer is not None:
            writer.write(answer)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        client = client_of(listening.sockets[0].getsockname()[1])
        try:
            await client.probe(timeout_s=0.2)
        finally:
            await client.close()
    return asked


async def test_one_that_is_ready_is_well() -> None:
    assert await probe(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") == 1


async def test_one_that_is_not_ready_says_so() -> None:
    with pytest.raises(UpstreamUnavailable, match="not ready"):
        await probe(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")


async def test_one_that_would_fill_memory_is_not_listened_to() -> None:
    with pytest.raises(UpstreamUnavailable, match="its body has 99999999999 bytes, of 65536 at most"):
        await probe(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")


async def test_one_that_says_nothing_is_given_up_on() -> None:
    with pytest.raises(DeadlineExceeded):
        await probe(None)


async def test_its_probes_close_a_connection_of_grpc_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readexactly(3)) == b"GET":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()

    monkeypatch.setattr(region_client, "_SILENT_S", 0.1)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening, asyncio.timeout(5):
        client = client_of(listening.sockets[0].getsockname()[1])
        async with asyncio.TaskGroup() as tasks:
            lost = tasks.create_task(client.grpc.unary(GrpcCall(GrpcHead("/m"), frame_message(b"x")), timeout_s=30))
            await client.probe(timeout_s=1.0)
            assert not lost.done()
            await asyncio.sleep(0.2)
            await asyncio.gather(client.probe(timeout_s=1.0), return_exceptions=True)
        assert lost.result().loss is SendFailure.CONNECTION_LOST
        await client.close()


async def test_who_calls_a_port_that_drops_what_comes_is_not_kept_for_his_whole_time() -> None:
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for each in (first, second):
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        client = client_of(full.getsockname()[1])
        async with asyncio.timeout(5):
            answer = await client.grpc.unary(GrpcCall(GrpcHead("/m"), frame_message(b"x")), timeout_s=30)
            with pytest.raises(UpstreamUnavailable) as caught:
                await client.http.send(HttpRequest(b"GET", b"/"), timeout_s=30)
        assert answer.loss is SendFailure.NOT_SENT
        assert caught.value.is_not_sent
        await client.close()


async def test_where_nobody_listens_no_triton_is_blamed() -> None:
    client = client_of(1)
    with pytest.raises(UpstreamUnavailable, match="cannot connect to its gateway at"):
        await client.probe(timeout_s=1.0)
    await client.close()


def test_requests_have_the_bound_that_is_given() -> None:
    client = client_of(1)
    assert (client.http.max_answer_bytes, client.grpc.max_answer_bytes) == (2**20, 2**20)


def test_a_calls_head_has_its_callers_credentials_and_is_made_once() -> None:
    client, head = client_of(1), GrpcHead("/m", ((b"a", b"b"),), authorization="Bearer x", api_key="y")
    made = client.head_for(head)
    assert made.metadata == ((b"a", b"b"), (b"authorization", b"Bearer x"), (b"x-api-key", b"y"))
    assert made.timeout_s is not None
    assert client.head_for(head) is made
