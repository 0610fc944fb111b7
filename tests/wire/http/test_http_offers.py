"""Offers to upgrade the connection, which are passed over: the request is answered, and the connection ends with it."""

from __future__ import annotations

import asyncio

import pytest

from tests.wire.gateway import INFER, LIVE, gateway, infer_request

JAVAS = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\nUpgrade: h2c\r\n"
"""Header fields by which Java's HTTP client offers HTTP/2 with each request over plain TCP."""
CHUNKED = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\n%bTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"


@pytest.mark.parametrize("asked", [b"h2c", b"websocket", b"TLS/1.0"])
async def test_without_a_body(asked: bytes) -> None:
    async with gateway() as frontend:
        client = await frontend.connect()
        await client.send(LIVE.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: " + asked + b"\r\n\r\n"))
        answer = await client.answer()
        assert (answer.status, answer.says_close) == (200, True)
        await client.send(LIVE)
        assert await client.is_closed_by_server()


@pytest.mark.parametrize("piece_bytes", [1, 100, 10_000])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(infer_request(headers=JAVAS), id="length"),
        pytest.param(CHUNKED % (JAVAS, len(INFER), INFER), id="chunks"),
        pytest.param(infer_request(headers=b"Connection: Upgrade\r\nUpgrade: websocket\r\n"), id="websocket"),
    ],
)
async def test_with_a_body(sent: bytes, piece_bytes: int) -> None:
    async with gateway() as frontend:
        client = await frontend.connect()
        for at in range(0, len(sent), piece_bytes):
            await client.send(sent[at : at + piece_bytes])
            await asyncio.sleep(0)
        answer = await client.answer()
        assert (answer.status, answer.body, answer.says_close) == (200, INFER, True)
        assert await client.is_closed_by_server()


async def test_with_a_body_that_waits_for_a_continue() -> None:
    async with gateway() as frontend:
        client = await frontend.connect()
        await client.send(infer_request(headers=JAVAS + b"Expect: 100-continue\r\n")[: -len(INFER)])
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.ask(INFER)).body == INFER


async def test_behind_another_request() -> None:
    async with gateway() as frontend:
        client = await frontend.connect()
        await client.send(infer_request() + infer_request(headers=JAVAS) + infer_request(model=b"unread"))
        assert [(await client.answer()).says_close for _ in range(2)] == [False, True]
        assert await client.is_closed_by_server()
        assert [request.target for request in frontend.upstream.http.requests] == [b"/v2/models/m/infer"] * 2
