"""The work that one flooding connection can cause in a turn of the event loop is bounded, and other clients
are served."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest

from control_plane.frontends.grpc.connection import GrpcConnection
from control_plane.frontends.http.connection import HttpConnection
from control_plane.host.large_buffers import LARGE_BYTES
from control_plane.host.process_memory import held_bytes
from control_plane.protocols.grpc import frame_message
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2 import huffman as http2_huffman
from control_plane.protocols.http2.frames import Code
from control_plane.protocols.http2.headers import NO_TABLE, encode_fields
from perf.floods.flood import Flood
from perf.floods.table import FLOODS
from tests.unit.frontends.frontend_ends import Frontends, Transport
from tests.unit.protocols.http2.http2_ends import frame

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n"
CHUNKED = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
KEYED = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"a"),
    (b"content-type", b"application/grpc"),
    (b"x-api-key", b"key"),
)
OPENING = h2.PREFACE + h2.settings_frame({}) + h2.SETTINGS_ACK
READ_BYTES = 256_000
"""The number of bytes that uvloop reads at a time."""


@asynccontextmanager
async def frontends() -> AsyncIterator[Frontends]:
    async with asyncio.TaskGroup() as tasks:
        it = Frontends(tasks)
        yield it
        for server in (it.http, it.grpc):
            for connection in tuple(server._connections):
                connection.connection_lost(None)


def call(stream_id: int, message: bytes = b"x") -> bytes:
    block, body = NO_TABLE + encode_fields(KEYED), frame_message(message)
    head = frame(h2.HEADERS, h2.END_HEADERS, stream_id, block)
    return head + frame(h2.DATA, h2.END_STREAM, stream_id, body)


def frames_of(transport: Transport) -> list[h2.Frame]:
    return h2.FrameReader(1 << 24).feed(bytes(transport.written))


def goaways(transport: Transport) -> list[int]:
    return [int.from_bytes(payload[4:8], "big") for kind, _, _, payload in frames_of(transport) if kind == h2.GOAWAY]


def unread_bytes(connection: HttpConnection | GrpcConnection) -> int:
    if isinstance(connection, HttpConnection):
        return connection._reader.unread_bytes
    frames = connection._state._receiver._frames
    return len(frames._data) - frames._at


def _held_bytes() -> int:
    return held_bytes([os.getpid()]) or 0


class Client:
    """Client that sends one request at a time, and counts the turns of the loop until each answer."""

    def __init__(self, it: Frontends, frontend: str) -> None:
        self._connection, self._transport = it.connect(frontend)
        self._frontend = frontend
        self._stream_id = -1
        self._answers = 0
        if frontend == "grpc":
            self._connection.data_received(OPENING)

    async def ask(self) -> int:
        self._stream_id += 2
        self._connection.data_received(LIVE if self._frontend == "http" else call(self._stream_id))
        turns = 0
        while self._count() == self._answers:
            await asyncio.sleep(0)
            turns += 1
            assert turns < 1_000
        self._answers = self._count()
        return turns

    def _count(self) -> int:
        if self._frontend == "http":
            return self._transport.written.count(b"HTTP/1.1 200 ")
        return sum(1 for kind, flags, *_ in frames_of(self._transport) if kind == h2.HEADERS and flags & h2.END_STREAM)


class Attacker:
    """Client that floods as fast as its data is read, in pieces as large as the loop's reads; reconnects when
    refused."""

    def __init__(self, it: Frontends, flood: Flood) -> None:
        self._it, self._flood = it, flood
        self._connect()

    def send(self) -> None:
        if self.transport.is_closed or self.transport.has_eof:
            self._connect()
        elif not self.transport.is_paused:
            for piece in itertools.islice(self._pieces, 1 if self._flood.pause_s else 100):
                self._pending += piece
                if len(self._pending) >= READ_BYTES:
                    break
            data, self._pending = self._pending[:READ_BYTES], self._pending[READ_BYTES:]
            if data:
                reader = cast("asyncio.Protocol", self.transport.protocol or self.connection)
                reader.data_received(bytes(data))

    def _connect(self) -> None:
        self.connection, self.transport = self._it.connect(self._flood.protocol)
        self._pieces = self._flood.pieces(b"key" if self._flood.has_key else b"")
        self._pending = bytearray()
        if not self._flood.reads:
            self.connection.pause_writing()


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_gets_little_of_each_turn_and_everybody_else_an_answer_within_a_few(name: str) -> None:
    async with frontends() as it:
        flood = FLOODS[name]
        attackers = [Attacker(it, flood) for _ in range(min(flood.connections, 50))]
        bystanders = [Client(it, frontend) for frontend in ("http", "grpc")]
        for each in attackers:
            each.send()  # the first of what arrives is read on arrival
        for _ in range(60):
            for each in attackers:
                each.send()
            handled = it.behind.handled
            await asyncio.sleep(0)
            assert it.behind.handled - handled <= len(attackers) + 20
        for bystander in bystanders * 10:
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


def large_upload(frontend: str) -> tuple[bytes, bytes]:
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
    head, body = large_upload(frontend)
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


class TestHttp:
    async def test_requests_that_came_together_are_handled_one_in_a_turn_and_in_order(self) -> None:
        async with frontends() as it:
            connection, transport = it.connect("http")
            connection.data_received(LIVE * 500)
            while transport.written.count(b"HTTP/1.1 200") < 500:
                before = it.behind.handled
                await asyncio.sleep(0)
                assert it.behind.handled - before <= 1
            assert transport.is_paused is False
            assert unread_bytes(connection) == 0

    async def test_the_socket_is_not_read_while_much_is_unread(self) -> None:
        async with frontends() as it:
            connection, transport = it.connect("http")
            connection.data_received(LIVE * 1_000)
            assert transport.is_paused
            while unread_bytes(connection) > 16 * 1024:
                assert transport.is_paused
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not transport.is_paused

    async def test_of_a_large_answer_a_piece_is_written_in_a_turn(self) -> None:
        async with frontends() as it:

            async def answer(request: HttpRequest) -> HttpAnswer:
                return make_answer(200, bytes(1_000_000))

            it.http.application = answer
            connection, transport = it.connect("http")
            connection.data_received(LIVE)
            written = [0]
            while written[-1] < 1_000_000:
                await asyncio.sleep(0)
                written.append(len(transport.written))
            assert max(after - before for before, after in itertools.pairwise(written)) <= 256 * 1024 + 1_000

    async def test_a_client_that_leaves_with_a_few_requests_unanswered_is_seen(self) -> None:
        async with frontends() as it:
            it.behind.may_answer.clear()
            connection, transport = it.connect("http")
            connection.data_received(LIVE * 10)
            for _ in range(5):
                await asyncio.sleep(0)
            assert (it.behind.handled, transport.is_paused) == (1, False)
            connection.connection_lost(None)
            it.behind.may_answer.set()
            for _ in range(20):
                await asyncio.sleep(0)
            assert it.behind.handled == 1

    async def test_what_came_behind_a_request_is_read_when_that_is_answered(self) -> None:
        async with frontends() as it:
            it.behind.may_answer.clear()
            connection, transport = it.connect("http")
            connection.data_received(LIVE)
            for _ in range(3):
                connection.data_received(LIVE[:7])
                connection.data_received(LIVE[7:])
                await asyncio.sleep(0)
            it.behind.may_answer.set()
            for _ in range(40):
                await asyncio.sleep(0)
            assert transport.written.count(b"HTTP/1.1 200") == 4

    async def test_nothing_is_read_for_a_client_that_does_not_read(self) -> None:
        async with frontends() as it:
            connection, transport = it.connect("http")
            connection.data_received(LIVE * 100)
            for _ in range(10):
                await asyncio.sleep(0)
            connection.pause_writing()
            for _ in range(3):
                await asyncio.sleep(0)
            written = transport.written.count(b"HTTP/1.1 200")
            for _ in range(100):
                await asyncio.sleep(0)
            assert transport.written.count(b"HTTP/1.1 200") == written < 100
            connection.resume_writing()
            while transport.written.count(b"HTTP/1.1 200") < 100:
                await asyncio.sleep(0)

    @pytest.mark.parametrize(
        ("head", "status"),
        [
            pytest.param(b"a: b\r\n" * 99, b"200", id="a hundred fields"),
            pytest.param(b"a: b\r\n" * 100, b"431", id="one more"),
            pytest.param(b"a: b\r\n" * 2_500, b"431", id="thousands"),
        ],
    )
    async def test_a_head_has_a_hundred_fields_at_most(self, head: bytes, status: bytes) -> None:
        async with frontends() as it:
            connection, transport = it.connect("http")
            connection.data_received(LIVE[:-2] + head + b"\r\n")
            while not transport.written:
                await asyncio.sleep(0)
            assert transport.written.startswith(b"HTTP/1.1 " + status)

    @pytest.mark.parametrize(
        "sizes",
        [
            pytest.param([1] * 3_000, id="of one byte"),
            pytest.param([5, 300, 70_000, 1, 1, 40_000], id="of all sizes"),
        ],
    )
    @pytest.mark.parametrize("read_bytes", [1_000, 1_001, READ_BYTES])
    async def test_chunks_are_read_a_few_at_a_time_and_make_one_body(self, sizes: list[int], read_bytes: int) -> None:
        body = b"".join(bytes([size % 251]) * size for size in sizes)
        chunks, at = bytearray(CHUNKED), 0
        for size in sizes:
            chunks += b"%x\r\n%b\r\n" % (size, body[at : at + size])
            at += size
        chunks += b"0\r\n\r\n"

        async with frontends() as it:
            connection, transport = it.connect("http")
            seen: list[bytes] = []

            async def answer(request):  # type: ignore[no-untyped-def]
                seen.append(bytes(request.body))
                return await it.behind.answer(request)

            it.http.application = answer
            for start in range(0, len(chunks), read_bytes):
                connection.data_received(bytes(chunks[start : start + read_bytes]))
                while transport.is_paused:
                    before = unread_bytes(connection)
                    await asyncio.sleep(0)
                    assert before - unread_bytes(connection) <= 4096 * 8 + max(sizes)
            while not seen:
                await asyncio.sleep(0)
            assert seen == [body]

    @pytest.mark.virtual_time
    async def test_a_refused_client_that_goes_on_sending_is_read_little_by_little_and_for_a_while(self) -> None:
        async with frontends() as it:
            connection, transport = it.connect("http")
            connection.data_received(b"no request\r\n\r\n")
            while not transport.has_eof:
                await asyncio.sleep(0)
            assert transport.written.startswith(b"HTTP/1.1 400 ")
            for _ in range(10):
                assert not transport.is_paused
                connection.data_received(bytes(READ_BYTES))
                assert transport.is_paused
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert unread_bytes(connection) == 0
            assert not transport.is_closed
            await asyncio.sleep(3)
            assert transport.is_closed


class TestGrpc:
    async def test_calls_that_came_together_are_handled_one_in_a_turn_while_others_keep_up(self) -> None:
        async with frontends() as it:
            connection, _ = it.connect("grpc")
            other, _ = it.connect("grpc")
            connection.data_received(OPENING + b"".join([call(stream_id) for stream_id in range(1, 201, 2)]))
            while it.behind.handled < 3:  # those that are handled on arrival
                it.grpc.reads.kept_up = cast("GrpcConnection", other)
                await asyncio.sleep(0)
            while it.behind.handled < 100:
                it.grpc.reads.kept_up, before = cast("GrpcConnection", other), it.behind.handled
                await asyncio.sleep(0)
                assert it.behind.handled - before <= 1

    async def test_the_table_of_huffmans_code_is_there_before_anybody_is_served(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http2_huffman, "_ROWS", [])

        async with frontends():
            assert len(http2_huffman._ROWS) == 256

    @pytest.mark.parametrize(
        "small",
        [
            pytest.param(frame(h2.PING, 0, 0, bytes(8)), id="pings"),
            pytest.param(frame(0xF0, 0, 0, b""), id="unknown frames"),
            pytest.param(frame(h2.GOAWAY, 0, 0, bytes(8)), id="farewells"),
        ],
    )
    async def test_frames_that_came_together_are_handled_a_few_in_a_turn_and_the_socket_is_not_read(self, small: bytes) -> None:
        async with frontends() as it:
            connection, transport = it.connect("grpc")
            connection.data_received(OPENING + small * 1_000)
            assert transport.is_paused
            assert unread_bytes(connection) >= 994 * len(small)
            while not transport.has_eof:
                before = unread_bytes(connection)
                await asyncio.sleep(0)
                assert transport.has_eof or before - unread_bytes(connection) <= 20 * len(small)
            assert goaways(transport) == [Code.ENHANCE_YOUR_CALM]

    async def test_many_calls_that_came_together_are_all_answered(self) -> None:
        async with frontends() as it:
            connection, transport = it.connect("grpc")
            connection.data_received(OPENING + b"".join(call(2 * number + 1) for number in range(300)))
            while sum(1 for kind, flags, *_ in frames_of(transport) if kind == h2.HEADERS and flags & h2.END_STREAM) < 300:
                before = it.behind.handled
                await asyncio.sleep(0)
                assert it.behind.handled - before <= 12
            assert not transport.is_paused

    async def test_nothing_is_read_for_a_client_that_does_not_read(self) -> None:
        async with frontends() as it:
            connection, transport = it.connect("grpc")
            connection.data_received(OPENING + frame(h2.PING, 0, 0, bytes(8)) * 400)
            connection.pause_writing()
            await asyncio.sleep(0)
            unread = unread_bytes(connection)
            for _ in range(50):
                await asyncio.sleep(0)
            assert unread_bytes(connection) == unread > 0
            connection.resume_writing()
            while unread_bytes(connection):
                await asyncio.sleep(0)
            assert not transport.is_paused
            assert [kind for kind, flags, *_ in frames_of(transport)].count(h2.PING) == 400

    @pytest.mark.virtual_time
    async def test_one_that_broke_the_protocol_is_told_why_and_not_read_any_more(self) -> None:
        async with frontends() as it:
            connection, transport = it.connect("grpc")
            connection.data_received(OPENING + frame(h2.DATA, 0, 1, b"x"))
            assert goaways(transport) == [Code.PROTOCOL_ERROR]
            assert (transport.has_eof, transport.is_paused, transport.is_closed) == (True, True, False)
            connection.data_received(bytes(100))
            await asyncio.sleep(2)
            assert transport.is_closed

    async def test_a_drain_does_not_wait_for_one(self) -> None:
        async with frontends() as it:
            connection, transport = it.connect("grpc")
            connection.data_received(OPENING + frame(h2.DATA, 0, 1, b"x"))
            connection.leave()
            assert transport.is_closed

    @pytest.mark.parametrize("ends", [pytest.param(b"", id="and an end"), pytest.param(b"\0\0", id="and one cut off")])
    async def test_messages_that_came_together_on_a_stream_are_handled_one_in_a_turn(self, ends: bytes) -> None:
        head = NO_TABLE + encode_fields((*KEYED[:2], (b":path", b"/inference.GRPCInferenceService/ModelStreamInfer"), *KEYED[3:]))

        async with frontends() as it:
            connection, transport = it.connect("grpc")
            body = frame(h2.DATA, h2.END_STREAM, 1, frame_message(b"") * 2_000 + ends)
            connection.data_received(OPENING + frame(h2.HEADERS, h2.END_HEADERS, 1, head) + body)
            while connection._state.streams:
                before = it.behind.handled
                await asyncio.sleep(0)
                assert it.behind.handled - before <= 1
            assert it.behind.handled == (2_000 if not ends else 1_984)  # those cut out together with the end that is none are lost
            (status,) = [payload for kind, flags, _, payload in frames_of(transport) if kind == h2.HEADERS and flags & h2.END_STREAM]
            assert (b"grpc-status\x010" in bytes(status)) is (ends == b"")
