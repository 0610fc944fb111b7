"""The HTTP frontend with TLS: the handshake and the end of a connection differ from plain text."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.http.limits import HttpLimits
from control_plane.frontends.http.server import HttpServer
from control_plane.host.network.listening import bind_tcp, port_of
from control_plane.host.network.tls import HTTP, Tls
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.settings import TlsSettings
from tests.tls_files import Authority, needs_openssl
from tests.wire.gateway import LIMITS

pytestmark = needs_openssl
HANDSHAKE_S = 0.3
SHORT = replace(LIMITS, header_timeout_s=HANDSHAKE_S)
LARGE = bytes(range(256)) * 4096


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def answer(request: HttpRequest) -> HttpAnswer:
    return make_answer(200, LARGE if request.target == b"/large" else request.body)


@asynccontextmanager
async def serving(authority: Authority, *, drain_s: float = 0.0, limits: HttpLimits = SHORT) -> AsyncIterator[int]:
    server = authority.issue("server")
    tls = Tls(TlsSettings(tls_certificate=server.certificate, tls_key=server.key))
    http = HttpServer(answer, render_error, limits)
    bound = bind_tcp("127.0.0.1", 0, setting="--http-port")
    async with asyncio.TaskGroup() as tasks:
        await http.listen(tasks, bound, tls.context(HTTP))
        yield port_of(bound)
        await http.drain(drain_s)


async def connect(port: int, client: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="localhost")


def request(target: bytes, body: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (target, len(body), body)


async def read_body(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    return await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))


async def test_large_bodies_both_ways_on_one_connection(authority: Authority) -> None:
    async with serving(authority) as port:
        reader, writer = await connect(port, authority.client())
        for target, body, expected in ((b"/echo", LARGE[: 1 << 19], LARGE[: 1 << 19]), (b"/large", b"", LARGE), (b"/echo", b"x", b"x")):
            writer.write(request(target, body))
            assert await read_body(reader) == expected
        writer.transport.abort()


async def test_a_refused_request_is_answered_before_the_connection_ends(authority: Authority) -> None:
    async with serving(authority) as port:
        reader, writer = await connect(port, authority.client())
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400")
        await reader.read()
        writer.transport.abort()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01"], ids=["nothing", "half a hello"])
async def test_a_handshake_that_does_not_end_is_ended(authority: Authority, said: bytes) -> None:
    async with serving(authority) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        assert await reader.read() == b""
        writer.transport.abort()


async def is_closed(reader: asyncio.StreamReader, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            return await reader.read() == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


async def test_connections_count_before_their_handshake(authority: Authority) -> None:
    """Otherwise clients that never finish a handshake could use up all file descriptors."""
    async with serving(authority, limits=replace(LIMITS, max_connections=8, source_share=0.5, header_timeout_s=2.0)) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
        closed = [await is_closed(reader, 0.5) for reader, _ in held[4:]]
        assert closed == [True] * 26, "what is beyond the share is closed at once"
        with pytest.raises(OSError):
            await connect(port, authority.client())
        assert [await is_closed(reader, 10) for reader, _ in held[:4]] == [True] * 4, "and these when their time is over"
        for _, writer in held:
            writer.transport.abort()
        others = [await connect(port, authority.client()) for _ in range(4)]
        for reader, writer in others:
            writer.write(request(b"/echo", b"x"))
            assert await read_body(reader) == b"x"
        for _, writer in others:
            writer.transport.abort()


async def test_a_drain_does_not_wait_for_handshakes(authority: Authority) -> None:
    async with asyncio.timeout(20):
        async with serving(authority, limits=replace(LIMITS, header_timeout_s=600.0)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.1)
        assert await is_closed(reader, 10)
        writer.transport.abort()


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([request(b"/echo")], id="a request"),
        pytest.param([b"DELETE /x HTTP/1.1\r\n\r\n"], id="with a method of which OpenSSL does not know that it is HTTP"),
        pytest.param([b"G", b"E", b"T / HTTP/1.1\r\nHost: x\r\n\r\n"], id="in pieces"),
        pytest.param([request(b"/echo", b"x" * 100_000)], id="with a body that nobody reads"),
        pytest.param([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"], id="gRPC without TLS"),
    ],
)
async def test_plain_text_is_told_that_the_port_speaks_tls_and_let_go(authority: Authority, pieces: list[bytes]) -> None:
    async with serving(authority) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.01)
        head = await reader.readuntil(b"\r\n\r\n")
        text = await reader.readexactly(int(head.partition(b"content-length: ")[2]))
        rest = await reader.read()  # until the server ends it, as it ends a handshake that does not go on
        writer.transport.abort()
    assert head.startswith(b"HTTP/1.1 400 ")
    assert text.startswith(b"this port speaks TLS: use https://")
    assert rest == b""


@pytest.mark.parametrize(
    ("said", "more"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n", b"x" * 2**16, id="plain text without end"),
        pytest.param(b"\xff" * 64, b"", id="neither TLS nor plain text"),
        pytest.param(b"get / http/1.1\r\n\r\n", b"", id="a method that is none"),
    ],
)
async def test_what_is_no_client_is_ended_at_once(authority: Authority, said: bytes, more: bytes) -> None:
    def say_until_it_is_ended(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=20.0) as connection, suppress(ConnectionError):
            connection.sendall(said)
            while more:
                connection.sendall(more)
            assert connection.recv(100) == b""

    async with serving(authority, limits=replace(LIMITS, header_timeout_s=1000.0)) as port:
        await asyncio.to_thread(say_until_it_is_ended, port)


async def test_an_idle_client_does_not_hold_up_a_drain(authority: Authority) -> None:
    def connect_and_read_no_more(port: int) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port))
        connection = authority.client().wrap_socket(plain, server_hostname="localhost")
        connection.sendall(request(b"/echo"))
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        return connection

    async with serving(authority, drain_s=600.0) as port:
        connection = await asyncio.to_thread(connect_and_read_no_more, port)
    connection.close()
