"""Answers that HTTP connections write together at the end of a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from control_plane.concurrency.turn_writes import Unsent
from control_plane.frontends.http.connection import HttpConnection
from tests.aio import settle
from tests.fakes.held_writes import HeldWrites
from tests.unit.frontends.frontend_ends import ANSWER, Frontends, Transport

ASK = b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n"
ANNOUNCE = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"
ANSWERED = ANSWER.head + bytes(ANSWER.body)


@asynccontextmanager
async def connected(count: int) -> AsyncIterator[tuple[HeldWrites, list[tuple[HttpConnection, Transport]]]]:
    async with asyncio.TaskGroup() as tasks:
        frontends, writes = Frontends(tasks), HeldWrites()
        frontends.http.writes = writes
        pairs = []
        for _ in range(count):
            connection, transport = frontends.connect("http")
            assert isinstance(connection, HttpConnection)
            pairs.append((connection, transport))
        yield writes, pairs
        for connection, _ in pairs:
            connection.connection_lost(None)


@asynccontextmanager
async def one_put_off() -> AsyncIterator[tuple[HttpConnection, Transport, Unsent]]:
    """A connection that has put its answer off, beside another one."""
    async with connected(2) as (writes, [(connection, transport), _]):
        connection.data_received(ASK)
        await settle()
        (unsent,) = writes.held
        assert not transport.written
        yield connection, transport, unsent


async def test_with_one_connection_nothing_is_put_off() -> None:
    async with connected(1) as (writes, [(connection, transport)]):
        connection.data_received(ASK)
        await settle()
        assert (transport.written, writes.held) == (ANSWERED, [])


async def test_it_is_written_once() -> None:
    async with one_put_off() as (_, transport, unsent):
        unsent.flush()
        unsent.flush()
        assert transport.written == ANSWERED


async def test_what_comes_after_it_is_written_after_it() -> None:
    async with one_put_off() as (connection, transport, _):
        connection.data_received(ANNOUNCE)
        assert transport.written == ANSWERED + b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_the_next_answer_does_not_overtake_it() -> None:
    async with one_put_off() as (connection, transport, _):
        connection.data_received(ASK)
        await settle()
        assert transport.written == 2 * ANSWERED


async def test_a_drain_waits_for_it() -> None:
    async with one_put_off() as (connection, transport, _):
        connection.leave()
        assert (transport.written, transport.is_closed) == (ANSWERED, True)


async def test_a_connection_that_has_one_is_not_idle() -> None:
    async with one_put_off() as (connection, _, unsent):
        assert not connection.is_idle
        unsent.flush()
        assert connection.is_idle


@pytest.mark.parametrize("is_lost", [False, True], ids=["closing", "lost"])
async def test_to_a_client_that_has_left_nothing_is_written(is_lost: bool) -> None:
    async with one_put_off() as (connection, transport, unsent):
        transport.close()
        if is_lost:
            connection.connection_lost(None)
        unsent.flush()
        assert not transport.written
