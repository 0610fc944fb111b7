"""DNS rebinding: a web page whose own host name resolves to this machine, against frontends without API
keys."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import grpc
import pytest

from control_plane.host.network.exposure import AllowedHosts
from tests.wire.gateway import Client, gateway, infer_request
from tests.wire.grpc_frontend import INFER as GRPC_INFER
from tests.wire.grpc_frontend import frontend, infer_message

REFUSED = [
    pytest.param(b"GET /v2 HTTP/1.1\r\nHost: evil.example:8000\r\n\r\n", id="its own name"),
    pytest.param(b"GET /v2 HTTP/1.1\r\nhOST:evil.example\r\n\r\n", id="spelled otherwise"),
    pytest.param(b"GET /v2/health/live HTTP/1.1\r\nHost: evil.example\r\n\r\n", id="health"),
    pytest.param(b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", id="OpenAI's paths"),
    pytest.param(b"GET http://evil.example/v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", id="a target in absolute form"),
    pytest.param(b"GET HTTP://evil.example/v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", id="in capitals"),
    pytest.param(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n", id="a page of another site"),
    pytest.param(infer_request().replace(b"localhost", b"evil.example"), id="an inference"),
    pytest.param(
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1000000\r\n\r\n", id="a body that is never read"
    ),
    pytest.param(
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: evil.example\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n",
        id="not asked for a body",
    ),
]


@pytest.mark.parametrize("request_", REFUSED)
async def test_http_refuses_it_with_a_sentence(request_: bytes) -> None:
    async with gateway(hosts=AllowedHosts()) as it:
        client = await it.connect()
        answer = await client.ask(request_)
        assert (answer.status, answer.says_close) == (403, True)
        assert b"without authentication" in answer.body
        assert not it.upstream.http.requests


async def test_a_connection_that_was_answered_before_is_asked_again() -> None:
    """A remembered head must not be taken for one that differs in its Host only."""
    async with gateway(hosts=AllowedHosts()) as it:
        client = await it.connect()
        for _ in range(3):
            assert (await client.ask(infer_request())).status == 200
        assert (await client.ask(infer_request().replace(b"localhost", b"127.0.0.9"))).status == 200
        assert (await client.ask(infer_request().replace(b"localhost", b"evil.test"))).status == 403


@pytest.mark.parametrize(
    "head",
    [
        b"Host: localhost:8000\r\n",
        b"Host: [::1]:8000\r\n",
        b"Host: gateway.internal\r\n",
        b"Host: localhost\r\nSec-Fetch-Site: same-origin\r\n",
        b"",
    ],
)
async def test_http_answers_callers_of_this_machine(head: bytes) -> None:
    async with gateway(hosts=AllowedHosts(["gateway.internal"])) as it:
        client = await it.connect()
        assert (await client.ask(infer_request().replace(b"Host: localhost\r\n", head))).status == 200


async def test_no_page_reaches_a_unix_socket_so_any_name_does_there(tmp_path: Path) -> None:
    async with gateway(hosts=AllowedHosts()) as it, asyncio.TaskGroup() as tasks:
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(str(tmp_path / "http.sock"))
        bound.setblocking(False)
        await it.server.listen(tasks, bound)
        client = Client(*await asyncio.open_unix_connection(str(tmp_path / "http.sock")))
        assert (await client.ask(infer_request().replace(b"localhost", b"triton"))).status == 200
        await client.close()
        await it.server.drain(0)


@pytest.mark.parametrize(
    ("authority", "metadata", "code"),
    [
        pytest.param("evil.example:8001", (), grpc.StatusCode.PERMISSION_DENIED, id="its own name"),
        pytest.param("localhost", (("sec-fetch-site", "cross-site"),), grpc.StatusCode.PERMISSION_DENIED, id="a page of another site"),
        pytest.param("gateway.internal", (), grpc.StatusCode.OK, id="allowed"),
        pytest.param("[::1]:8001", (), grpc.StatusCode.OK, id="of this machine"),
        pytest.param(None, (), grpc.StatusCode.OK, id="as grpcio says it by itself"),
    ],
)
async def test_grpc(authority: str | None, metadata: tuple[tuple[str, str], ...], code: grpc.StatusCode) -> None:
    options = () if authority is None else (("grpc.default_authority", authority),)

    async with frontend(hosts=AllowedHosts(["gateway.internal"]), options=options) as it:  # type: ignore[arg-type]
        call = it.channel.unary_unary(GRPC_INFER)(infer_message(), metadata=metadata)
        assert await call.code() is code
        if code is not grpc.StatusCode.OK:
            assert "without authentication" in await call.details()
