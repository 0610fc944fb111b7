"""`generate` and `generate_stream`: streamed answers are forwarded piece by piece."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, UpstreamUnavailable
from control_plane.core.infer_call import Outcome
from control_plane.protocols.http1 import make_answer
from tests.fakes import FakeHttp, FakeHttpStream, FakeUpstream
from tests.wire.gateway import INFER, LIMITS, gateway, infer_request
from tests.wire.http.http_leaving_bench import wait_until_still
from tests.wire.http.http_streams_bench import BODY, EVENTS, chunk


def request(*, version: bytes = b"1.1", headers: bytes = b"", body: bytes = BODY, verb: bytes = b"generate_stream") -> bytes:
    head = b"POST /v2/models/m/%b HTTP/%b\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n" % (verb, version, headers, len(body))
    return head + body


def upstream(stream: FakeHttpStream) -> FakeUpstream:
    return FakeUpstream(http=FakeHttp(streams=lambda _: stream))


@pytest.mark.parametrize("verb", [b"generate", b"generate_stream"])
async def test_each_piece_goes_on_as_it_comes_and_the_connection_is_kept(verb: bytes) -> None:
    stream = FakeHttpStream()
    async with gateway(upstream(stream)) as frontend:
        client = await frontend.connect()
        await client.send(request(verb=verb))
        assert await client.reader.readuntil(b"\r\n\r\n") == stream.head
        for event in EVENTS:
            stream.put(event)
            assert await chunk(client) == event
        assert (frontend.inference.in_flight, frontend.recorder.records) == (1, [])
        stream.put(None)
        assert await chunk(client) == b""
        await stream.closed.wait()
        assert (await client.ask(infer_request())).body == INFER
        assert frontend.recorder.outcomes == [Outcome.ANSWERED] * 2
        assert frontend.upstream.http.requests[0].body == BODY


@pytest.mark.parametrize("body", [b'{"text":"a","tidegate-background":"1"}', b'{"text":"a","parameters":{"tidegate-background":"1"}}'])
async def test_what_would_become_a_parameter_of_the_gateways_own_is_refused(body: bytes) -> None:
    async with gateway(upstream(FakeHttpStream())) as frontend:
        answer = await (await frontend.connect()).ask(request(body=body))
        assert (answer.status, b"gateway's own" in answer.body, frontend.upstream.http.requests) == (400, True, [])


@pytest.mark.parametrize(
    ("version", "headers", "is_chunked"),
    [(b"1.0", b"", False), (b"1.0", b"Connection: keep-alive\r\n", False), (b"1.1", b"Connection: close\r\n", True)],
)
async def test_who_does_not_keep_the_connection_gets_it_to_its_end(version: bytes, headers: bytes, is_chunked: bool) -> None:
    async with gateway(upstream(FakeHttpStream().put(*EVENTS, None))) as frontend:
        client = await frontend.connect()
        await client.send(request(version=version, headers=headers))
        head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
        assert (b"chunked" in head, b"Connection: close" in head) == (is_chunked, True)
        expected = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in (*EVENTS, b"")) if is_chunked else b"".join(EVENTS)
        assert body == expected


async def test_an_error_before_the_first_piece_keeps_its_status() -> None:
    answers = FakeUpstream(http=FakeHttp(streams=lambda _: make_answer(404, b'{"error":"unknown"}')))
    async with gateway(answers) as frontend:
        client = await frontend.connect()
        answer = await client.ask(request())
        assert (answer.status, answer.body) == (404, b'{"error":"unknown"}')
        assert frontend.recorder.outcomes == [Outcome.MODEL_NOT_FOUND]


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_nor_does_one_that_comes_as_a_piece(version: bytes) -> None:
    event = b'data: {"error":"out of memory"}\n\n'
    stream = FakeHttpStream(400, FakeHttpStream.head.replace(b"200 OK", b"400 Bad Request")).put(event, None)
    async with gateway(upstream(stream)) as frontend:
        client = await frontend.connect()
        await client.send(request(version=version, headers=b"Connection: close\r\n"))
        head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert (b"Transfer-Encoding: chunked" in head) == (version == b"1.1")
        assert body == (b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event) if version == b"1.1" else event)
        assert (frontend.recorder.outcomes, stream.closed.is_set()) == ([Outcome.UPSTREAM_ERROR], True)


@pytest.mark.parametrize(
    ("error", "outcome"), [(UpstreamUnavailable("gone"), Outcome.UNAVAILABLE), (DeadlineExceeded("slow"), Outcome.DEADLINE_EXCEEDED)]
)
async def test_one_that_breaks_off_says_why_and_does_not_look_whole(error: ControlPlaneError, outcome: Outcome) -> None:
    stream = FakeHttpStream().put(EVENTS[0], error)
    async with gateway(upstream(stream)) as frontend:
        client = await frontend.connect()
        await client.send(request())
        await client.reader.readuntil(b"\r\n\r\n")
        assert await chunk(client) == EVENTS[0]
        assert await chunk(client) == b'data: {"error":"%b"}\n\n' % str(error).encode()
        with pytest.raises(asyncio.IncompleteReadError):
            await chunk(client)
        assert (stream.closed.is_set(), frontend.recorder.outcomes) == (True, [outcome])


async def test_a_client_that_leaves_ends_it() -> None:
    stream = FakeHttpStream().put(EVENTS[0])
    async with gateway(upstream(stream)) as frontend:
        client = await frontend.connect()
        await client.send(request())
        await client.reader.readuntil(b"\r\n\r\n")
        await chunk(client)
        await client.close()
        await stream.closed.wait()
        assert (frontend.recorder.outcomes, frontend.inference.in_flight) == ([Outcome.ABANDONED], 0)


async def test_a_client_that_does_not_read_is_not_sent_more() -> None:
    stream = FakeHttpStream().put(*[bytes(64 << 10)] * 500, None)
    async with gateway(upstream(stream)) as frontend:
        client = await frontend.connect(receive_buffer_bytes=64 << 10)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(request())
        assert 0 < await wait_until_still(lambda: stream.taken) < 250
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        await client.reader.readuntil(b"\r\n\r\n")
        received = 0
        while piece := await chunk(client):
            received += len(piece)
        assert received == 500 * (64 << 10)


async def test_one_that_is_under_way_may_end_while_the_server_drains() -> None:
    stream = FakeHttpStream().put(EVENTS[0])
    async with gateway(upstream(stream)) as frontend:
        client = await frontend.connect()
        await client.send(request())
        await client.reader.readuntil(b"\r\n\r\n")
        await chunk(client)
        draining = asyncio.get_running_loop().create_task(frontend.server.drain(10.0))
        await asyncio.sleep(0.05)
        stream.put(EVENTS[1], None)
        assert [await chunk(client) for _ in range(2)] == [EVENTS[1], b""]
        await draining
        assert await client.is_closed_by_server()


async def test_one_that_outlasts_the_drain_ends_with_an_error_event() -> None:
    stream = FakeHttpStream().put(EVENTS[0])
    async with gateway(upstream(stream)) as frontend, asyncio.TaskGroup() as tasks:
        client = await frontend.connect()
        await client.send(request())
        await client.reader.readuntil(b"\r\n\r\n")
        await chunk(client)
        tasks.create_task(frontend.server.drain(0.05))
        told = b'data: {"error":"the gateway is stopping; try again shortly"}\n\n'
        assert [await chunk(client) for _ in range(2)] == [told, b""]
        assert await client.is_closed_by_server()
        await stream.closed.wait()
        assert frontend.recorder.outcomes == [Outcome.UNAVAILABLE]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 500),
        (b"{", 500),
        (b"[1]", 500),
        (b'{"text":"a","text":"b"}', 500),
        (b"[" * 100_000, 500),
        (b'{"text":' + b"[" * 2000 + b"]" * 2000 + b"}", 500),
    ],
)
async def test_what_is_no_object_never_reaches_triton(body: bytes, status: int) -> None:
    async with gateway() as frontend:
        answer = await (await frontend.connect()).ask(request(body=body))
        assert answer.status == status
        assert json.loads(answer.body)["error"]
        assert (frontend.upstream.http.requests, frontend.recorder.outcomes) == ([], [Outcome.REFUSED])


async def test_a_long_prompt_goes_on_as_it_came() -> None:
    body = json.dumps({"text": 'say "[' * 200_000, "count": 1}).encode()
    async with gateway(upstream(FakeHttpStream().put(None)), replace(LIMITS, max_body_bytes=8 << 20)) as frontend:
        client = await frontend.connect()
        await client.send(request(body=body))
        await client.reader.readuntil(b"\r\n\r\n")
        assert frontend.upstream.http.requests[0].body == body
