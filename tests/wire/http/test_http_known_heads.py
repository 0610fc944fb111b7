"""A repeated head takes the fast path, with the same answers as the ordinary path."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.gateway import LIVE, Gateway, gateway, infer_request


def body(value: int) -> bytes:
    return b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[%d]}]}' % value


REQUESTS = [
    infer_request(body(1)),
    infer_request(body(2)),
    infer_request(body(10)),
    infer_request(body(2), headers=b"x-trace: 1\r\n"),
    infer_request(body(3), headers=b"x-trace: 1\r\n"),
    infer_request(body(3), model=b"n"),
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body(4)), body(4)),
    LIVE,
    infer_request(body(6)) + b"\r\n",  # some clients send an empty line that belongs to no request, and servers pass over it
    b"\r\n" + infer_request(body(7)),
    LIVE + b"\r\n",
    infer_request(b"\r\n") + b"\r\n",
]


PICKS = st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=12)


def reached_triton(frontend: Gateway) -> list[tuple[bytes, list[tuple[bytes, bytes]], bytes]]:
    return [(sent.target, sent.headers, sent.body) for sent in frontend.upstream.http.requests]


async def on_fresh_connections(frontend: Gateway, picks: list[bytes]) -> list[bytes]:
    return [(await (await frontend.connect()).ask(request)).body for request in picks]


@settings(max_examples=40)
@given(picks=PICKS)
async def test_one_after_the_other_they_get_the_answers_of_fresh_connections(picks: list[bytes]) -> None:
    async with gateway() as frontend:
        expected, reached = await on_fresh_connections(frontend, picks), reached_triton(frontend)
        client = await frontend.connect()
        assert [(await client.ask(request)).body for request in picks] == expected
        assert reached_triton(frontend) == reached * 2


@settings(max_examples=40)
@given(picks=PICKS, cuts=st.lists(st.integers(0, 1500), max_size=4))
async def test_in_any_pieces_they_get_the_answers_of_fresh_connections(picks: list[bytes], cuts: list[int]) -> None:
    async with gateway() as frontend:
        expected, reached = await on_fresh_connections(frontend, picks), reached_triton(frontend)
        client = await frontend.connect()
        stream = b"".join(picks)
        for start, end in pairwise(sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})):
            await client.send(stream[start:end])
            await asyncio.sleep(0)
        assert [(await client.answer()).body for _ in picks] == expected
        assert reached_triton(frontend) == reached * 2


@pytest.mark.parametrize(
    "repeated",
    [
        pytest.param(infer_request(body(5), headers=b"Expect: 100-continue\r\n"), id="expects a continue"),
        pytest.param(infer_request(body(5), headers=b"Connection: close\r\n"), id="closes"),
    ],
)
async def test_a_head_that_asks_for_more_than_an_answer_is_read_each_time(repeated: bytes) -> None:
    async with gateway() as frontend:
        client = await frontend.connect()
        await client.ask(infer_request(body(5)))
        if b"Expect" in repeated:
            for _ in range(2):
                await client.send(repeated[: -len(body(5))])
                assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                assert (await client.ask(body(5))).status == 200
        else:
            assert (await client.ask(repeated)).says_close


async def test_a_repeated_head_is_refused_as_the_first_one_was() -> None:
    bad = infer_request(b'{"inputs":[{"name":"X","datatype":"FP99","shape":[1],"data":[1]}]}')
    async with gateway() as frontend:
        client = await frontend.connect()
        assert [(await client.ask(bad)).status for _ in range(3)] == [400, 400, 400]
        assert (await client.ask(infer_request(body(1)))).status == 200
        assert len(frontend.upstream.http.requests) == 1


_ONE = infer_request(body(1))
_HEAD, _BODY = _ONE[: -len(body(1))], body(1)


@pytest.mark.parametrize(
    ("pieces", "statuses"),
    [
        pytest.param([_ONE + _ONE] * 3, [200] * 6, id="two requests that arrive together"),
        pytest.param([_ONE + _HEAD, _BODY] * 3, [200] * 6, id="a request and the head of the next"),
        pytest.param([_ONE[:20], _ONE[20:], _ONE[20:]], [200, 400], id="the end of a head, which alone is none"),
        pytest.param([_ONE[:-5], _ONE[-5:] + _ONE, _ONE[-5:] + _ONE], [200, 200, 400], id="the end of a body before a request"),
        pytest.param(
            [_ONE, infer_request(_ONE)[: -len(_ONE)], _ONE, _ONE], [200, 500, 200], id="a body that is a request of the known head"
        ),
        pytest.param([_ONE, _HEAD, _BODY[:10], _BODY[10:], _ONE], [200] * 3, id="the known head alone"),
    ],
)
async def test_pieces_that_look_like_a_known_request_are_read_as_what_they_are(pieces: list[bytes], statuses: list[int]) -> None:
    async with gateway() as frontend:
        client = await frontend.connect()
        for piece in pieces:
            await client.send(piece)
            await asyncio.sleep(0.01)  # so that each arrives by itself
        assert [(await client.answer()).status for _ in statuses] == statuses
        assert [sent.body for sent in frontend.upstream.http.requests] == [_BODY] * statuses.count(200)
