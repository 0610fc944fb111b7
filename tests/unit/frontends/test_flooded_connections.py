"""The work that one flooding connection can cause in a turn of the event loop is bounded, and other clients
are served."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.frontends.common.read_scheduler import _MORE_BEGUN_PER_S, MOST_BEGUN
from control_plane.host.memory.large_buffers import LARGE_BYTES
from control_plane.protocols.grpc import frame_message
from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.headers import NO_TABLE, encode_fields
from perf.floods.table import FLOODS
from tests.unit.frontends.flooded_ends import (
    KEYED,
    LIVE,
    OPENING,
    READ_BYTES,
    Attacker,
    Client,
    call,
    frontends,
)
from tests.unit.protocols.http2.http2_ends import frame


def _held_bytes() -> int:
    """Memory of this process alone: of what it shares with others, such as libraries, its part changes as these come and go."""
    (kib,) = re.findall(r"^RssAnon:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 1024 * int(kib)


@pytest.mark.parametrize("frontend", ["http", "grpc"])
async def test_of_many_requests_that_come_at_once_few_begin_in_a_turn(frontend: str) -> None:
    async with frontends() as it, asyncio.TaskGroup() as asking:
        clients = [Client(it, frontend) for _ in range(3 * MOST_BEGUN)]
        await asyncio.sleep(0)
        answers = [asking.create_task(each.ask()) for each in clients]
        began_s = deque([time.perf_counter()], maxlen=3)
        while it.behind.handled < len(clients):
            handled = it.behind.handled
            await asyncio.sleep(0)
            began_s.append(time.perf_counter())
            long_turn = _MORE_BEGUN_PER_S * (began_s[-1] - began_s[0])  # of this turn and the one before
            assert it.behind.handled - handled <= MOST_BEGUN + 1 + long_turn
        assert {(await each) <= 10 for each in answers} == {True}


async def test_of_each_connection_few_calls_wait_to_begin_however_fast_it_sends() -> None:
    async with frontends() as it:
        peers = [it.connect("grpc") for _ in range(3 * MOST_BEGUN)]
        for connection, _ in peers:
            connection.data_received(OPENING)
        honest, unsent = Client(it, "grpc"), 0
        for turn in range(30):
            for connection, transport in peers:
                if transport.is_paused:
                    unsent += 2
                else:
                    connection.data_received(call(4 * turn + 1) + call(4 * turn + 3))
            await asyncio.sleep(0)
            assert len(it.grpc.reads._waiting) <= 3 * len(peers)
        assert await honest.ask() <= 3 * len(peers) / MOST_BEGUN + 5
        assert unsent > 0
        for _ in range(20):
            await asyncio.sleep(0)
        assert it.behind.handled == 30 * 2 * len(peers) - unsent + 1
        assert not any(transport.is_paused for _, transport in peers)


@pytest.mark.parametrize("frontend", ["http", "grpc"])
async def test_of_those_that_wait_to_begin_whoever_leaves_costs_nothing(frontend: str, caplog: pytest.LogCaptureFixture) -> None:
    async with frontends() as it:
        peers = [it.connect(frontend)[0] for _ in range(2 * MOST_BEGUN)]
        await asyncio.sleep(0)
        for each in peers:
            each.data_received(LIVE if frontend == "http" else OPENING + call(1))
        for each in peers[MOST_BEGUN:]:
            each.connection_lost(None)
        for _ in range(10):
            await asyncio.sleep(0)
        assert it.behind.handled == MOST_BEGUN
        assert caplog.records == []


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_gets_little_of_each_turn_and_everybody_else_an_answer_within_a_few(name: str) -> None:
    async with frontends() as it:
        flood = FLOODS[name]
        attackers = [Attacker(it, flood) for _ in range(min(flood.connections, 50))]
        bystanders = [Client(it, frontend) for frontend in ("http", "grpc")]
        for each in attackers:
            each.send()  # the first of what arrives is read on arrival
        for _ in range(30):
            for each in attackers:
                each.send()
            handled = it.behind.handled
            await asyncio.sleep(0)
            assert it.behind.handled - handled <= len(attackers) + 20
        for bystander in bystanders * 5:
            waiting = asyncio.get_running_loop().create_task(bystander.ask())
            while not waiting.done():
                for each in attackers:
                    each.send()
                await asyncio.sleep(0)
            assert waiting.result() <= 6


@pytest.mark.parametrize(
    ("frontend", "leaves"),
    [
        pytest.param("http", False, id="http"),
        pytest.param("http", True, id="http-left-early"),
        pytest.param("grpc", False, id="grpc"),
    ],
)
async def test_the_memory_of_a_large_body_is_given_back_a_little_at_a_time(frontend: str, leaves: bool) -> None:
    async with frontends() as it:
        size_bytes = 5 * LARGE_BYTES  # 40 MB, which malloc never takes from its heap
        it.http.limits = replace(it.http.limits, max_body_bytes=size_bytes)
        it.grpc.limits = replace(it.grpc.limits, max_message_bytes=size_bytes)
        connection, transport = it.connect(frontend)
        *pieces, last = _large_http(size_bytes) if frontend == "http" else _large_grpc(size_bytes)
        for piece in pieces:
            while transport.is_paused:
                await asyncio.sleep(0)
            connection.data_received(piece)
        del pieces
        held = [_held_bytes()]
        if leaves:
            connection.connection_lost(None)
        else:
            connection.data_received(last)
        while held[-1] > held[0] - 3 * LARGE_BYTES:
            await asyncio.sleep(0)
            held.append(_held_bytes())
        assert it.behind.handled == (0 if leaves else 1)
        assert max(before - after for before, after in itertools.pairwise(held)) < 3 * LARGE_BYTES


def _large_http(size_bytes: int) -> Iterator[bytes]:
    yield b"POST /v2/models/m/infer HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % size_bytes
    yield from itertools.repeat(b"\1" * 2**18, size_bytes // 2**18)


def _large_grpc(size_bytes: int) -> Iterator[bytes]:
    yield OPENING + frame(h2.HEADERS, h2.END_HEADERS, 1, NO_TABLE + encode_fields(KEYED))
    yield frame(h2.DATA, 0, 1, b"\0" + size_bytes.to_bytes(4, "big"))
    for left in range(size_bytes // 2**14, 0, -1):
        yield frame(h2.DATA, h2.END_STREAM if left == 1 else 0, 1, b"\1" * 2**14)


def _large_upload(frontend: str) -> tuple[bytes, bytes]:
    """A request's beginning, and its body of a megabyte."""
    if frontend == "http":
        return b"POST /v2/models/m/infer HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n", bytes(1_000_000)
    message = frame_message(bytes(1_000_000))
    pieces = [message[at : at + READ_BYTES] for at in range(0, len(message), READ_BYTES)]
    data = [frame(h2.DATA, h2.END_STREAM if piece is pieces[-1] else 0, 1, piece) for piece in pieces]
    return OPENING + frame(h2.HEADERS, h2.END_HEADERS, 1, NO_TABLE + encode_fields(KEYED)), b"".join(data)


@pytest.mark.parametrize("frontend", ["http", "grpc"])
async def test_of_large_bodies_one_read_is_made_in_a_turn_whoever_sends_them(frontend: str) -> None:
    """uvloop reads a socket again and again, 8 MB in a turn, as long as it is not told to pause."""
    head, body = _large_upload(frontend)
    async with frontends() as it:
        uploads = [it.connect(frontend) for _ in range(4)]
        for connection, transport in uploads:
            connection.data_received(head)
            assert not transport.is_paused
            connection.data_received(body[:READ_BYTES])
            assert transport.is_paused
        paused = [4]
        while paused[-1]:
            await asyncio.sleep(0)
            paused.append(sum(transport.is_paused for _, transport in uploads))
            assert paused[-2] - paused[-1] <= 1
        small, its_transport = it.connect(frontend)
        small.data_received(LIVE if frontend == "http" else OPENING + call(1))
        assert not its_transport.is_paused
        for connection, transport in uploads:
            for at in range(READ_BYTES, len(body), READ_BYTES):
                connection.data_received(body[at : at + READ_BYTES])
                while transport.is_paused:
                    await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert it.behind.handled == 5
