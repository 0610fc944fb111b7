"""The work that one HTTP connection can cause in a turn of the event loop is bounded."""

from __future__ import annotations

import asyncio
import itertools
from typing import cast

import pytest

from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from tests.unit.frontends.flooded_ends import (
    CHUNKED,
    LIVE,
    READ_BYTES,
    frontends,
    unread_bytes,
)


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

    async def test_what_looks_like_a_chunks_size_within_a_chunk_is_none_where_the_head_came_in_two_reads(self) -> None:
        lying = b"1010\r\n%bffffff\r\n%b\r\n" % (b"a" * (4096 - 7), b"a" * 15)  # the size stands where a slice of 4096 bytes would end
        async with frontends() as it:
            connection, _ = it.connect("http")
            connection.data_received(CHUNKED[:-1])
            rest = b"\n" + lying + b"1\r\na\r\n" * 30_000
            connection.data_received(rest)
            assert unread_bytes(connection) > len(rest) - 4096 * 8

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
                cast("asyncio.Protocol", transport.protocol).data_received(bytes(READ_BYTES))
                assert transport.is_paused
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert unread_bytes(connection) == 0
            assert not transport.is_closed
            await asyncio.sleep(3)
            assert transport.is_closed
