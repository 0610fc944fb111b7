from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from control_plane.core.endpoints import TcpAddress, TritonEndpoints, TritonSockets, UnixAddress
from control_plane.core.errors import UpstreamUnavailable
from control_plane.protocols.grpc import GrpcAnswer, GrpcHead, frame_message
from control_plane.protocols.http1 import HttpRequest
from control_plane.triton.adapters.connected import UpstreamClient
from control_plane.triton.adapters.grpc.client import GrpcClient
from control_plane.triton.adapters.http.client import HttpClient
from control_plane.triton.ports import GrpcCall
from tests.aio import run, settle
from tests.unit.triton.adapters.scripted_triton import Exchange, ScriptedTriton, scripted_triton

PAGE = b"nv_inference_count 7\n"


async def page_of(status: bytes, *, folder: Path | None = None) -> bytes:
    """Return what `metrics_text` makes of one answer of Triton's metrics port, or of its socket in a
    folder.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(PAGE), PAGE))
        closed.set_result(await reader.read())
        writer.close()

    closed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    listening = asyncio.start_server(serve, "127.0.0.1", 0) if folder is None else asyncio.start_unix_server(serve, folder / "metrics.sock")
    async with await listening as server:
        port = server.sockets[0].getsockname()[1]
        endpoints = TritonEndpoints("127.0.0.1", 1, 1, port) if folder is None else TritonSockets(str(folder))
        triton = UpstreamClient(endpoints, max_connections=1)
        try:
            return await triton.metrics_text()
        finally:
            assert await closed == b"", "its connection stays open and would hold up Triton's exit"
            await triton.close()


def test_metrics_are_tritons_page() -> None:
    assert run(page_of(b"200 OK")) == PAGE


def test_metrics_come_by_a_unix_socket_too(tmp_path: Path) -> None:
    assert run(page_of(b"200 OK", folder=tmp_path)) == PAGE


async def test_nobody_at_a_unix_socket_is_unavailable_and_named(tmp_path: Path) -> None:
    triton = UpstreamClient(TritonSockets(str(tmp_path)), max_connections=1)
    with pytest.raises(UpstreamUnavailable, match=f"metrics at unix:{tmp_path}/metrics.sock cannot be read"):
        await triton.metrics_text()
    with pytest.raises(UpstreamUnavailable, match=f"cannot connect to Triton at unix:{tmp_path}/http.sock: .*No such file"):
        await triton.http.send(HttpRequest(b"GET", b"/v2"), timeout_s=20)
    with pytest.raises(UpstreamUnavailable, match="RepositoryIndex: "):
        await triton.control.index()
    call = GrpcCall(GrpcHead("/s/m", (), None), frame_message(b""))
    assert f"cannot connect to Triton at unix:{tmp_path}/grpc.sock:1: " in message_of(await triton.grpc.unary(call, timeout_s=20))
    await triton.close()


def message_of(answer: GrpcAnswer) -> str:
    return dict(answer.trailers)[b"grpc-message"].decode()


async def test_over_a_unix_socket_requests_go_to_localhost(tmp_path: Path) -> None:
    """The path of a Unix socket is no host: the request still needs a valid Host field."""
    heads = asyncio.Queue[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.put_nowait(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()
        heads.put_nowait(b"closed")

    async with await asyncio.start_unix_server(serve, tmp_path / "http.sock"):
        triton = UpstreamClient(TritonSockets(str(tmp_path)), max_connections=1)
        assert (await triton.http.send(HttpRequest(b"GET", b"/v2"), timeout_s=20)).status == 200
        assert b"\r\nHost: localhost\r\n" in await heads.get()
        await triton.close()
        assert await heads.get() == b"closed"


@pytest.mark.parametrize("is_unix", [False, True], ids=["TCP", "a Unix socket"])
async def test_callers_that_leave_while_it_connects_leave_nothing(is_unix: bool, tmp_path: Path) -> None:
    """At any moment of connecting: uvloop closes a cancelled connection without calling connection_lost."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    async with await (
        asyncio.start_unix_server(serve, tmp_path / "s") if is_unix else asyncio.start_server(serve, "127.0.0.1", 0)
    ) as server:
        address = UnixAddress(str(tmp_path / "s")) if is_unix else TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        http, http2 = HttpClient(address, max_connections=100), GrpcClient(address)
        call = GrpcCall(GrpcHead("/s/m", (), None), frame_message(b""))
        for turns in [*range(15)] * 3:
            async with asyncio.TaskGroup() as tasks:
                sent = tasks.create_task(http.send(HttpRequest(b"GET", b"/v2"), timeout_s=20))
                called = tasks.create_task(http2.unary(call, timeout_s=20))
                for _ in range(turns):
                    await asyncio.sleep(0)
                sent.cancel()
                called.cancel()
        await settle()
        assert not http.open
        assert len(http2._open) <= 1, "which others go on with"
        await http2.close()


def test_a_proxy_in_the_environment_is_not_asked_for_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert run(page_of(b"200 OK")) == PAGE


def test_metrics_that_triton_refuses_are_unavailable() -> None:
    with pytest.raises(UpstreamUnavailable, match=r"metrics at 127.0.0.1:.* cannot be read"):
        run(page_of(b"503 Service Unavailable"))


async def test_metrics_without_anybody_there_are_unavailable() -> None:
    triton = UpstreamClient(TritonEndpoints("127.0.0.1", 1, 1, 1), max_connections=1)
    with pytest.raises(UpstreamUnavailable):
        await triton.metrics_text()
    await triton.close()


async def test_no_metrics_port_is_no_metrics() -> None:
    triton = UpstreamClient(TritonEndpoints("127.0.0.1", 1, 1, None), max_connections=1)
    assert await triton.metrics_text() == b""
    await triton.close()


async def test_closing_it_closes_both_frontends() -> None:
    async def hold(exchange: Exchange) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def main(server: ScriptedTriton) -> None:
        triton = UpstreamClient(TritonEndpoints("127.0.0.1", server.port, 1, None), max_connections=1)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(_failure(triton))
            await server.arrivals.get()
            await triton.close()
        assert isinstance(task.result(), UpstreamUnavailable)
        with pytest.raises(UpstreamUnavailable, match="the connection to Triton has been closed"):
            await triton.control.index()
        await server.wait_until_open(0)

    async with scripted_triton(hold) as server:
        await main(server)


async def _failure(triton: UpstreamClient) -> BaseException | None:
    try:
        await triton.http.send(HttpRequest(b"GET", b"/v2"), timeout_s=20)
    except UpstreamUnavailable as exc:
        return exc
    return None
