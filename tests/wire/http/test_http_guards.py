"""Limits on slow clients and on buffered bodies: the time and memory that they get, and the answers to
them."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import replace

import pytest

from control_plane.protocols.http1 import make_answer
from tests.fakes import FakeHttp, FakeUpstream
from tests.wire.gateway import INFER, LIMITS, LIVE, Client, Gateway, gateway, infer_request

_MIB = 1 << 20
QUICK = replace(LIMITS, header_timeout_s=0.1, body_timeout_s=0.1, idle_timeout_s=0.1)
HEAD_ONLY = infer_request()[: -len(INFER)]


class TestTime:
    @pytest.mark.parametrize(
        ("part", "says"),
        [
            pytest.param(b"P", "head", id="the first byte"),
            pytest.param(HEAD_ONLY[:-2], "head", id="a head without its end"),
            pytest.param(HEAD_ONLY, "body", id="a head"),
            pytest.param(infer_request()[:-1], "body", id="all but the last byte"),
            pytest.param(b"POST /v2/models/m/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "body", id="no chunk"),
            pytest.param(b"POST /v2/models/m/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n42\r\n{", "body", id="part of a chunk"),
        ],
    )
    async def test_who_stops_within_a_request_is_told_so(self, part: bytes, says: str) -> None:
        async with gateway(limits=QUICK) as frontend:
            client = await frontend.connect()
            answer = await client.ask(part)
            assert (answer.status, answer.says_close) == (408, True)
            assert says.encode() in answer.body
            assert await client.is_closed_by_server()
            assert frontend.upstream.http.requests == []

    async def test_a_head_that_comes_byte_by_byte_has_no_more_time(self) -> None:
        async with gateway(limits=replace(QUICK, body_timeout_s=60.0)) as frontend:
            client = await frontend.connect()
            with pytest.raises(ConnectionError):
                await _drip(client, b"GET /v2/health/live HTTP/1.1\r\nX: " + b"a" * 5000)

    async def test_a_body_that_goes_on_coming_has_all_the_time(self) -> None:
        async with gateway(limits=replace(QUICK, body_timeout_s=0.4)) as frontend:
            client = await frontend.connect()
            await client.send(HEAD_ONLY)
            for byte in INFER:
                await client.send(b"%c" % byte)
                await asyncio.sleep(0.02)
            assert (await client.answer()).status == 200

    async def test_a_large_body_that_comes_byte_by_byte_does_not(self) -> None:
        async with gateway(limits=replace(QUICK, body_timeout_s=0.3)) as frontend:
            client = await frontend.connect()
            await client.send(infer_request(bytes(500_000))[:300])
            with pytest.raises(ConnectionError):
                await _drip(client, bytes(100_000))
            assert frontend.upstream.http.requests == []

    async def test_a_large_body_of_unknown_size_that_goes_on_byte_by_byte_does_not(self) -> None:
        async with gateway(limits=replace(QUICK, body_timeout_s=0.3)) as frontend:
            client = await frontend.connect()
            await client.send(b"POST /v2/models/m/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n%b\r\n" % bytes(100_000))
            with pytest.raises(ConnectionError):
                await _drip(client, b"1\r\na\r\n" * 10_000)
            assert frontend.upstream.http.requests == []

    @pytest.mark.parametrize("before", [b"", LIVE, infer_request()], ids=["nothing", "a request", "an inference"])
    async def test_who_asks_nothing_more_is_closed_without_a_word(self, before: bytes) -> None:
        async with gateway(limits=QUICK) as frontend:
            client = await frontend.connect()
            if before:
                assert (await client.ask(before)).status == 200
            assert await client.is_closed_by_server()

    async def test_who_asks_now_and_then_is_not_closed(self) -> None:
        async with gateway(limits=replace(QUICK, idle_timeout_s=0.4)) as frontend:
            client = await frontend.connect()
            for _ in range(12):
                assert (await client.ask(infer_request())).status == 200
                await asyncio.sleep(0.1)

    async def test_without_an_idle_time_out_nobody_is_closed(self) -> None:
        async with gateway(limits=replace(QUICK, idle_timeout_s=0.0)) as frontend:
            client = await frontend.connect()
            await asyncio.sleep(0.5)
            assert (await client.ask(LIVE)).status == 200

    async def test_who_waits_for_triton_is_not_slow(self) -> None:
        async with gateway(limits=QUICK) as frontend:
            frontend.upstream.http.calls.hold()
            client = await frontend.connect()
            await client.send(infer_request())
            await asyncio.sleep(0.5)
            frontend.upstream.http.calls.may_answer.set()
            assert (await client.answer()).status == 200

    async def test_who_does_not_read_its_answer_is_dropped(self) -> None:
        upstream = FakeUpstream(http=FakeHttp(answer=lambda _: make_answer(200, bytes(32 * _MIB))))
        async with gateway(upstream, QUICK) as frontend:
            client = await frontend.connect(receive_buffer_bytes=64 << 10)
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(infer_request())
            async with asyncio.timeout(100):
                while frontend.server._connections:
                    await asyncio.sleep(0.02)


async def _drip(client: Client, data: bytes) -> None:
    for byte in data:
        await client.send(b"%c" % byte)
        await asyncio.sleep(0.01)


def padded(size: int) -> bytes:
    return INFER + b" " * (size - len(INFER))


async def send_head(client: Client, size: int) -> None:
    await client.send(infer_request(padded(size))[:-size])


class TestMemory:
    async def _hold(self, frontend: Gateway, size: int) -> Client:
        """A client whose body is being computed at Triton, and holds memory of the budget."""
        client = await frontend.connect()
        await client.send(infer_request(padded(size)))
        await frontend.upstream.http.calls.arrivals.get()
        return client

    async def test_is_held_until_the_answer_and_small_bodies_are_not_counted(self) -> None:
        async with gateway() as frontend:
            frontend.upstream.http.calls.hold()
            clients = [await self._hold(frontend, size) for size in (1000, 65_536, 65_537, 500_000)]
            assert frontend.budget.held_bytes == 565_537
            frontend.upstream.http.calls.may_answer.set()
            assert [(await client.answer()).status for client in clients] == [200] * 4
            assert frontend.budget.held_bytes == 0

    @pytest.mark.parametrize("is_chunked", [False, True])
    async def test_beyond_the_budget_a_body_waits_unread_and_is_served_in_the_end(self, is_chunked: bool) -> None:
        async with gateway(max_buffered_bytes=_MIB) as frontend:
            frontend.upstream.http.calls.hold()
            first = await self._hold(frontend, 900_000)
            second = await frontend.connect()
            body = padded(900_000)
            if is_chunked:
                request = b"POST /v2/models/m/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
                    len(body),
                    body,
                )
            else:
                request = infer_request(body)
            await second.send(request)
            await asyncio.sleep(0.1)
            assert frontend.budget.held_bytes <= _MIB
            assert len(frontend.upstream.http.requests) == 1
            frontend.upstream.http.calls.may_answer.set()
            assert [(await client.answer()).status for client in (first, second)] == [200, 200]
            assert frontend.upstream.http.requests[1].body == body

    async def test_who_waits_too_long_is_told_to_come_again(self) -> None:
        async with gateway(limits=replace(LIMITS, body_timeout_s=0.2), max_buffered_bytes=_MIB) as frontend:
            frontend.upstream.http.calls.hold()
            first = await self._hold(frontend, 900_000)
            second = await frontend.connect()
            await send_head(second, 900_000)
            answer = await second.answer()
            assert (answer.status, answer.says_close) == (503, True)
            assert b"\r\nRetry-After: 1\r\n" in answer.head
            frontend.upstream.http.calls.may_answer.set()
            assert (await first.answer()).status == 200

    async def test_who_leaves_while_it_waits_or_holds_gives_it_back(self) -> None:
        async with gateway(max_buffered_bytes=_MIB) as frontend:
            frontend.upstream.http.calls.hold()
            first = await self._hold(frontend, 900_000)
            waiting, third = await frontend.connect(), await frontend.connect()
            await send_head(waiting, 800_000)
            await send_head(third, 700_000)
            await asyncio.sleep(0.05)
            await waiting.close()
            await first.close()
            frontend.upstream.http.calls.may_answer.set()
            assert (await third.ask(padded(700_000))).status == 200

    async def test_a_client_that_waits_is_told_to_go_on_when_there_is_room(self) -> None:
        async with gateway(max_buffered_bytes=_MIB) as frontend:
            frontend.upstream.http.calls.hold()
            first = await self._hold(frontend, 900_000)
            second = await frontend.connect()
            body = padded(900_000)
            await second.send(infer_request(body, headers=b"Expect: 100-continue\r\n")[: -len(body)])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(second.reader.readexactly(1), 0.1)
            frontend.upstream.http.calls.may_answer.set()
            assert (await first.answer()).status == 200
            assert await second.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert (await second.ask(body)).status == 200

    async def test_what_a_compressed_body_becomes_counts(self) -> None:
        async with gateway(max_buffered_bytes=900_000) as frontend:
            client = await frontend.connect()
            packed = infer_request(gzip.compress(padded(800_000)), headers=b"Content-Encoding: gzip\r\n")
            assert (await client.ask(packed)).status == 200
            assert frontend.upstream.http.requests[0].body == padded(800_000)
            answer = await client.ask(infer_request(gzip.compress(padded(1_000_000)), headers=b"Content-Encoding: gzip\r\n"))
            assert answer.status == 503
            assert frontend.budget.held_bytes == 0


class TestDecidedOnTheHead:
    @pytest.mark.parametrize(
        ("line", "status"),
        [
            (b"POST /nowhere", 404),
            (b"PUT /v2/models/m/infer", 405),
            (b"POST /v2/repository/index", 413),
            (b"POST /v2/systemsharedmemory/region/r/register", 403),
        ],
    )
    @pytest.mark.parametrize("fields", [b"Content-Length: 1048577\r\n", b"Content-Length: 1048577\r\nExpect: 100-continue\r\n"])
    async def test_a_large_body_is_refused_before_it_comes(self, line: bytes, status: int, fields: bytes) -> None:
        async with gateway(limits=replace(LIMITS, max_body_bytes=4 * _MIB)) as frontend:
            client = await frontend.connect()
            answer = await client.ask(line + b" HTTP/1.1\r\n" + fields + b"\r\n")
            assert (answer.status, answer.says_close) == (status, True)
            assert frontend.budget.held_bytes == 0

    async def test_a_small_one_is_read_so_that_the_connection_can_go_on(self) -> None:
        async with gateway() as frontend:
            client = await frontend.connect()
            answer = await client.ask(b"POST /nowhere HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
            assert (answer.status, answer.says_close) == (404, False)
            assert (await client.ask(infer_request())).status == 200


class TestLarge:
    async def test_a_large_body_and_answer_arrive_whole_in_whatever_pieces(self) -> None:
        async with gateway(limits=replace(LIMITS, max_body_bytes=64 * _MIB)) as frontend:
            client = await frontend.connect()
            size = 20 * _MIB + 7
            header = b'{"inputs":[{"name":"X","datatype":"UINT8","shape":[%d],"parameters":{"binary_data_size":%d}}]}' % (size, size)
            body = header + bytes(range(256)) * (size // 256) + bytes(size % 256)
            await client.send(infer_request(body, headers=b"Inference-Header-Content-Length: %d\r\n" % len(header)))
            answer = await client.answer()
            assert (answer.status, answer.body == body) == (200, True)
            assert (await client.ask(infer_request())).body == INFER

    async def test_others_are_answered_while_a_large_one_is_checked(self) -> None:
        async with gateway(limits=replace(LIMITS, max_body_bytes=64 * _MIB)) as frontend:
            header = b'{"inputs":[{"name":"X","datatype":"BYTES","shape":[2000000],"parameters":{"binary_data_size":8000000}}]}'
            large, small = await frontend.connect(), await frontend.connect()
            headers = b"Inference-Header-Content-Length: %d\r\n" % len(header)
            await large.send(infer_request(header + bytes(8_000_000), headers=headers))
            served = 0
            while not frontend.upstream.http.requests:
                assert (await small.ask(LIVE)).status == 200
                served += 1
            assert served > 10, "they waited for the large one"
            assert (await large.answer()).status == 200
