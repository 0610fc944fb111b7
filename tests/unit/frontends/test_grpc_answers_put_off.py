"""Answers that gRPC connections write together at the end of a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from control_plane.frontends.grpc.connection import GrpcConnection
from control_plane.protocols.http2 import frames as h2
from tests.aio import settle
from tests.fakes.held_writes import HeldWrites
from tests.unit.frontends.flooded_ends import OPENING, call, frames_of
from tests.unit.frontends.frontend_ends import Frontends, Transport

ENDED = (h2.HEADERS, h2.END_STREAM | h2.END_HEADERS)
"""Type and flags of the trailers that end an answer."""


@asynccontextmanager
async def connected(count: int) -> AsyncIterator[tuple[HeldWrites, list[tuple[GrpcConnection, Transport]]]]:
    async with asyncio.TaskGroup() as tasks:
        frontends, writes = Frontends(tasks), HeldWrites()
        frontends.grpc.writes = writes
        pairs = []
        for _ in range(count):
            connection, transport = frontends.connect("grpc")
            assert isinstance(connection, GrpcConnection)
            connection.data_received(OPENING)
            pairs.append((connection, transport))
        yield writes, pairs
        for connection, _ in pairs:
            connection.connection_lost(None)


@asynccontextmanager
async def one_put_off() -> AsyncIterator[tuple[GrpcConnection, Transport]]:
    """A connection that has put its answer off, beside another one."""
    async with connected(2) as (writes, [(connection, transport), _]):
        connection.data_received(call(1))
        await settle()
        assert writes.held == [connection]
        assert answered(transport) == []
        yield connection, transport


def answered(transport: Transport) -> list[int]:
    """Streams whose answers have been written whole, in order."""
    return [stream_id for kind, flags, stream_id, _ in frames_of(transport) if (kind, flags) == ENDED]


async def test_the_only_call_of_the_only_connection_is_answered_at_once() -> None:
    async with connected(1) as (writes, [(connection, transport)]):
        connection.data_received(call(1))
        await settle()
        assert (answered(transport), writes.held) == ([1], [])


async def test_calls_of_one_connection_are_answered_in_one_write() -> None:
    async with connected(1) as (writes, [(connection, transport)]):
        connection.data_received(call(1) + call(3))
        before = transport.writes
        await settle()
        assert (answered(transport), writes.held) == ([1, 3], [connection])
        assert transport.writes == before + 1  # the last one, beside which there is none, takes the first with it


async def test_it_is_written_once() -> None:
    async with one_put_off() as (connection, transport):
        connection.flush()
        connection.flush()
        assert answered(transport) == [1]


async def test_a_connection_is_put_off_once_for_all_its_answers() -> None:
    async with connected(2) as (writes, [(connection, transport), _]):
        connection.data_received(call(1) + call(3))
        await settle()
        assert writes.held == [connection]
        connection.flush()
        assert answered(transport) == [1, 3]
        connection.data_received(call(5))
        await settle()
        assert writes.held == [connection, connection]


async def test_what_comes_after_it_is_written_after_it() -> None:
    async with one_put_off() as (connection, transport):
        connection.data_received(h2.ping(b"8 bytes."))
        assert [kind for kind, _, _, _ in frames_of(transport)][-3:] == [h2.DATA, h2.HEADERS, h2.PING]


async def test_a_drain_takes_it_along() -> None:
    async with one_put_off() as (connection, transport):
        connection.leave()
        assert answered(transport) == [1]


async def test_a_connection_that_has_one_is_not_idle() -> None:
    async with one_put_off() as (connection, _):
        assert not connection.is_idle
        connection.flush()
        assert connection.is_idle


@pytest.mark.parametrize("is_closing", [False, True])
async def test_to_a_client_that_has_left_nothing_is_written(is_closing: bool) -> None:
    async with one_put_off() as (connection, transport):
        if is_closing:
            transport.close()
        connection.connection_lost(None)
        connection.flush()
        assert answered(transport) == []
