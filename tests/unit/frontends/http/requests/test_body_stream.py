"""A streamed body waits in a bounded buffer, and its client's socket is not read while that is full."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import RequestTimeout
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.http.connection import HttpConnection
from control_plane.frontends.http.limits import HttpLimits, StreamedBody
from control_plane.frontends.http.requests.body_stream import BodyStream
from control_plane.frontends.http.server import HttpServer
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from tests.unit.frontends.frontend_ends import Transport

LIMITS = HttpLimits(max_body_bytes=1000, max_header_bytes=16 << 10, max_connections=10, max_upload_bytes=1 << 30)
READ_BYTES = 256 * 1024


class Receiving:
    """Application that receives a body when it may."""

    def __init__(self) -> None:
        self.may_receive = asyncio.Event()
        self.received_bytes = 0

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        assert request.stream is not None
        while True:
            await self.may_receive.wait()
            piece = await request.stream.receive()
            if piece is None:
                return make_answer(200)
            self.received_bytes += len(piece)


async def test_a_client_is_read_as_fast_as_its_body_is_taken() -> None:
    behind, transport = Receiving(), Transport()
    server = HttpServer(behind.answer, render_error, LIMITS, streams=lambda request: StreamedBody.UPLOAD)
    async with asyncio.TaskGroup() as tasks:
        connection = HttpConnection(server, tasks)
        connection.connection_made(transport)
        size_bytes = 40 * READ_BYTES
        connection.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size_bytes)
        sent = 0
        while not transport.is_paused:
            connection.data_received(b"x" * READ_BYTES)
            sent += 1
            await asyncio.sleep(0)
        assert sent <= 3

        behind.may_receive.set()
        while sent < 40:
            if transport.is_paused:
                await asyncio.sleep(0)
            else:
                connection.data_received(b"x" * READ_BYTES)
                sent += 1
        while not transport.written:
            await asyncio.sleep(0)

        assert behind.received_bytes == size_bytes
        assert transport.written.startswith(b"HTTP/1.1 200 OK")
        assert not transport.is_closed
        connection.connection_lost(None)


async def test_pieces_that_arrived_come_before_the_end() -> None:
    stream = BodyStream(lambda: None)
    stream.put(b"one")
    stream.put(b"two")
    stream.end()
    assert await stream.receive() == b"onetwo"
    assert await stream.receive() is None


async def test_who_waits_is_told_that_the_rest_will_not_come() -> None:
    stream = BodyStream(lambda: None)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_raises(stream))
        await asyncio.sleep(0)
        stream.fail(RequestTimeout("too slow"))
    assert waiting.done()


async def _raises(stream: BodyStream) -> None:
    with pytest.raises(RequestTimeout, match="too slow"):
        await stream.receive()
