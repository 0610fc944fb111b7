"""Clients that send too much are told so, even while they are sending, and never use memory beyond the
limits."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import pytest

from control_plane.frontends.http.limits import HttpLimits
from tests.aio import settle
from tests.wire.gateway import INFER, LIVE, Answer, Client, Gateway, gateway, infer_request

LIMITS = HttpLimits(max_body_bytes=10_000, max_header_bytes=2_000, max_connections=3)
_CHUNKED = b"POST /v2/models/m/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


async def refused(frontend: Gateway, *pieces: bytes) -> Answer:
    """Send these pieces and return the answer; then the connection must be closed, and Triton must have seen
    nothing."""
    client = await frontend.connect()
    for piece in pieces:
        await client.send(piece)
        await asyncio.sleep(0.001)  # so that they arrive as pieces
    answer = await client.answer()
    assert answer.says_close
    assert await client.is_closed_by_server()
    assert frontend.upstream.http.requests == []
    return answer


def padded(size: int) -> bytes:
    """An inference request with a body of exactly this size."""
    return INFER + b" " * (size - len(INFER))


class TestHead:
    @pytest.mark.parametrize(
        "pieces",
        [
            pytest.param([infer_request(headers=b"X: %b\r\n" % (b"a" * 2000))], id="one long field"),
            pytest.param([infer_request(headers=b"X: a\r\n" * 400)], id="many short fields"),
            pytest.param([infer_request(headers=b"X:\r\n" * 400)], id="many empty fields"),
            pytest.param([infer_request(model=b"m" * 2000)], id="a long target"),
            pytest.param([b"GET / HTTP/1.1\r\nX: " + b"a" * 5000], id="a field without an end"),
            pytest.param([b"GET / HTTP/1.1\r\n" + b"X" * 5000], id="a name without an end"),
            pytest.param([b"GET /" + b"x" * 5000], id="a target without an end"),
            pytest.param([b"GET / HTTP/1.1\r\nX: a", *[b"a" * 500] * 5], id="a field without an end, bit by bit"),
            pytest.param([b"GET / HTTP/1.1\r\n", *[b"X: a\r\n"] * 350], id="a head without an end, field by field"),
            pytest.param([_CHUNKED, b"1\r\na\r\n0\r\nX: a", *[b"a" * 500] * 5], id="a trailer without an end"),
            pytest.param([_CHUNKED, b"1;x=", *[b"a" * 500] * 5], id="a chunk extension without an end"),
            pytest.param([b"\r\n" * 2000], id="empty lines without an end"),
        ],
    )
    async def test_beyond_the_limit_is_refused(self, pieces: list[bytes]) -> None:
        async with gateway(limits=LIMITS) as frontend:
            answer = await refused(frontend, *pieces)
            assert answer.status == 431
            assert re.search("head (exceeds 2000 bytes|has more than 100 fields)", json.loads(answer.body)["error"])

    async def test_up_to_the_limit_is_not_in_however_many_pieces(self) -> None:
        async with gateway(limits=LIMITS) as frontend:
            client = await frontend.connect()
            request = infer_request(headers=b"X: %b\r\n" % (b"a" * 1700))
            for at in range(0, len(request), 50):
                await client.send(request[at : at + 50])
                await asyncio.sleep(0.0005)
            assert (await client.answer()).status == 200

    async def test_each_request_on_a_connection_has_the_whole_limit(self) -> None:
        async with gateway(limits=LIMITS) as frontend:
            client = await frontend.connect()
            await client.send(infer_request(headers=b"X: %b\r\n" % (b"a" * 1700)) * 5)
            assert [(await client.answer()).status for _ in range(5)] == [200] * 5

    async def test_what_frames_thousands_of_tiny_chunks_is_no_head(self) -> None:
        async with gateway(limits=LIMITS) as frontend:
            client = await frontend.connect()
            await client.send(_CHUNKED)
            for byte in padded(3_000):
                client.writer.write(b"1\r\n")
                await asyncio.sleep(0)
                client.writer.write(b"%c\r\n" % byte)
            assert (await client.ask(b"0\r\n\r\n")).status == 200


class TestBody:
    @pytest.mark.parametrize("size", [9_999, 10_000])
    async def test_up_to_the_limit_is_taken(self, size: int) -> None:
        async with gateway(limits=LIMITS) as frontend:
            client = await frontend.connect()
            assert (await client.ask(infer_request(padded(size)))).status == 200
            chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (size, padded(size))
            assert (await client.ask(_CHUNKED + chunk)).status == 200

    @pytest.mark.parametrize(
        "request_",
        [
            pytest.param(infer_request(padded(10_001)), id="declared"),
            pytest.param(infer_request(padded(10_001))[:-10_001], id="declared and not sent"),
            pytest.param(_CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (10_001, padded(10_001)), id="in one chunk"),
            pytest.param(_CHUNKED + b"a\r\n0123456789\r\n" * 1001, id="in many chunks"),
        ],
    )
    async def test_beyond_it_is_refused(self, request_: bytes) -> None:
        async with gateway(limits=LIMITS) as frontend:
            answer = await refused(frontend, request_)
            assert answer.status == 413
            assert "limit of 10000 bytes" in json.loads(answer.body)["error"]

    @pytest.mark.parametrize("call", [b"GET /v2/health/live", b"POST /v2/repository/index", b"POST /v2/repository/models/m/unload"])
    @pytest.mark.parametrize("is_chunked", [False, True])
    async def test_where_no_large_one_is_taken_it_is_refused_before_it_is_whole(self, call: bytes, is_chunked: bool) -> None:
        most = 1 << 16
        chunks = b"Transfer-Encoding: chunked\r\n\r\n" + b"8000\r\n%b\r\n" % bytes(1 << 15) * (most // 2**15 + 1)
        async with gateway(limits=replace(LIMITS, max_body_bytes=8 << 20)) as frontend:
            client = await frontend.connect()
            await client.send(call + b" HTTP/1.1\r\n" + (chunks if is_chunked else b"Content-Length: %d\r\n\r\n" % (most + 1)))
            answer = await client.answer()
            assert (answer.status, answer.says_close) == (413, True)
            assert f"limit of {most} bytes" in json.loads(answer.body)["error"]

    @pytest.mark.parametrize("start", [b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 50000000\r\n\r\n", _CHUNKED + b"2faf080\r\n"])
    async def test_a_client_that_sends_it_all_before_it_reads_still_gets_the_answer(self, start: bytes) -> None:
        """Closing a socket with unread bytes resets the connection, and the client would never read the
        refusal."""
        async with gateway(limits=LIMITS) as frontend:
            client = await frontend.connect()
            await client.send(start + bytes(50_000_000))
            assert (await client.answer()).status == 413
            assert await client.is_closed_by_server()

    async def test_a_client_that_never_stops_sending_is_dropped(self) -> None:
        async with gateway(limits=LIMITS) as frontend:
            client = await frontend.connect()
            started_s = asyncio.get_running_loop().time()
            with pytest.raises(ConnectionError):
                await _send_for_ever(client)
            assert asyncio.get_running_loop().time() - started_s < 60


class TestConnections:
    async def test_those_beyond_the_limit_are_closed_and_the_others_served(self) -> None:
        half, rest = LIVE[:10], LIVE[10:]

        async with gateway(limits=LIMITS) as frontend:
            kept = [await frontend.connect() for _ in range(3)]
            assert [(await client.ask(LIVE)).status for client in kept] == [200] * 3
            for client in kept:
                await client.send(half)
            await settle()
            for _ in range(3):
                assert await (await frontend.connect()).is_closed_by_server()
            assert [(await client.ask(rest)).status for client in kept] == [200] * 3

    async def test_one_that_is_idle_makes_room_for_the_next_of_its_source(self) -> None:
        async with gateway(limits=LIMITS) as frontend:
            kept = [await frontend.connect() for _ in range(3)]
            assert [(await client.ask(LIVE)).status for client in kept] == [200] * 3
            assert (await (await frontend.connect()).ask(LIVE)).status == 200
            assert await kept[0].is_closed_by_server()
            assert [(await client.ask(LIVE)).status for client in kept[1:]] == [200] * 2

    async def test_a_place_is_free_again_when_its_client_has_left(self) -> None:
        async with gateway(limits=LIMITS) as frontend:
            for _ in range(10):
                clients = [await frontend.connect() for _ in range(3)]
                assert [await _is_served(client) for client in clients] == [True] * 3
                for client in clients:
                    await client.send(LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
                    await client.answer()
                    assert await client.is_closed_by_server()


async def _is_served(client: Client) -> bool:
    return (await client.ask(LIVE)).status == 200


async def _send_for_ever(client: Client) -> None:
    while True:
        await client.send(_CHUNKED + bytes(1 << 20))
