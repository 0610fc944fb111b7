"""A connection reads its socket exactly while there is a use for what comes, also of a client that was refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.http.connection import HttpConnection
from control_plane.frontends.http.limits import HttpLimits
from control_plane.frontends.http.server import HttpServer
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from tests.aio import settle
from tests.unit.frontends.frontend_ends import Transport

BODY_BYTES = 100_000
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % BODY_BYTES


@dataclass
class Bench:
    connection: HttpConnection
    transport: Transport


@asynccontextmanager
async def without_memory() -> AsyncIterator[Bench]:
    """A connection while others hold the whole budget of bodies."""

    async def answer(request: HttpRequest) -> HttpAnswer:
        return make_answer(200)

    limits = HttpLimits(max_body_bytes=1 << 20, max_header_bytes=16 << 10, max_connections=10, body_timeout_s=0.05)
    budget = BodyBudget(1 << 20)
    assert budget.try_acquire(1 << 20)
    server, transport = HttpServer(answer, render_error, limits, budget=budget), Transport()
    async with asyncio.TaskGroup() as tasks:
        connection = HttpConnection(server, tasks)
        connection.connection_made(transport)
        yield Bench(connection, transport)
        connection.connection_lost(None)


async def test_the_socket_is_read_again_after_a_body_that_came_whole_before_there_was_room() -> None:
    async with without_memory() as it:
        it.connection.data_received(POST + bytes(BODY_BYTES))
        await settle()
        assert it.transport.written.startswith(b"HTTP/1.1 200 ")
        assert not it.transport.is_paused


async def test_what_a_client_without_room_goes_on_sending_is_read_and_dropped_so_that_it_reads_the_refusal() -> None:
    async with without_memory() as it:
        it.connection.data_received(POST)
        it.connection.data_received(bytes(BODY_BYTES // 2))
        assert it.transport.is_paused
        while not it.transport.has_eof:
            await asyncio.sleep(0)
        assert it.transport.written.startswith(b"HTTP/1.1 503 ")
        assert (it.transport.has_eof, it.transport.is_paused, it.transport.is_closed) == (True, False, False)
