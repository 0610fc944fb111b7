"""Running streams, and calls whose message comes late, end within a second with their caller's key or token."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace

import grpc
import pytest

from control_plane.core.infer_call import Outcome
from control_plane.core.principal import Principal
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from control_plane.protocols.grpc import frame_message
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.kserve.routes import V2Route
from control_plane.triton.ports import HttpStream
from tests.fakes import FakeGrpc, FakeHttp, FakeHttpStream, FakeUpstream
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.wire.gateway import Client, Gateway, gateway
from tests.wire.grpc_frontend import Bench, frontend, infer_message
from tests.wire.h2_calls import HEAD, begin, status
from tests.wire.http.http_streams_bench import BODY, EVENTS, chunk

KEYS = (api_key(1, "infer:*"), api_key(2, "infer:*"))
EVENT_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WITHIN_S = 5.0
"""The promise is one second; a busy machine may take longer."""


def known_keys() -> ObjectMirror:
    return known_state(keys=KEYS, tenants=(Tenant("team"),))


def drop(known: ObjectMirror) -> None:
    """Remove the first key, as after a reload of the store."""
    known.keys, known.generation = {key.id: key for key in KEYS[1:]}, known.generation + 1


def lose_tenant(known: ObjectMirror) -> None:
    known.tenants, known.generation = {}, known.generation + 1


def expire_soon(known: ObjectMirror) -> None:
    known.keys = {KEYS[0].id: replace(KEYS[0], expires_s=time.time() + 0.3)}
    known.generation += 1


ENDS = [pytest.param(drop, id="revoked"), pytest.param(lose_tenant, id="its tenant is gone"), pytest.param(expire_soon, id="expires")]


async def grpc_stream(it: Bench, number: int = 1) -> grpc.aio.StreamStreamCall:
    call = it.stream(metadata=(("x-api-key", key_text(number)),))
    await call.write(infer_message(model="m"))
    return call


@pytest.mark.parametrize("end", ENDS)
async def test_a_grpc_stream_that_waits_for_a_decoupled_models_answers(end: Callable[[ObjectMirror], None]) -> None:
    known = known_keys()

    async with frontend(governed=governance(known, authentication=True)) as it, asyncio.timeout(WITHIN_S):
        call = await grpc_stream(it)
        stream = await it.upstream.grpc.streams.get()
        assert await stream.sent.get()
        end(known)
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "API key" in await call.details()
        await stream.cancelled.wait()


async def test_a_grpc_stream_that_asks_nothing_or_waits_for_an_ordinary_answer() -> None:
    known = known_keys()

    slow = FakeGrpc()
    slow.calls.hold()
    async with frontend(slow, governed=governance(known, authentication=True)) as it, asyncio.timeout(WITHIN_S):
        it.upstream.control.decoupled["m"] = False
        idle = it.stream(metadata=(("x-api-key", key_text(1)),))
        waiting = await grpc_stream(it)
        await slow.calls.arrivals.get()
        drop(known)
        for call in (idle, waiting):
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_grpc_message_that_comes_after_its_callers_key_was_revoked_is_not_computed() -> None:
    known = known_keys()
    async with frontend(governed=governance(known, authentication=True)) as it, asyncio.timeout(2 * WITHIN_S):
        peer = await it.peer()
        await begin(peer, head=[*HEAD, ("x-api-key", key_text(1))])
        await asyncio.sleep(2.5)  # calls are looked at once a second
        drop(known)
        peer.state.send_data(1, frame_message(infer_message()), end_stream=True)
        await peer.flush()
        assert await status(peer) == str(grpc.StatusCode.UNAUTHENTICATED.value[0])
        assert it.upstream.grpc.requests == []


async def test_many_streams_of_one_revoked_key_all_end_alike_and_others_go_on() -> None:
    """A revoked key of many streams counts as no guess: the last stream must not be told of too many
    attempts."""
    known = known_keys()

    async with frontend(governed=governance(known, authentication=True)) as it, asyncio.timeout(4 * WITHIN_S):
        calls = [await grpc_stream(it) for _ in range(40)]
        other = await grpc_stream(it, 2)
        streams = [await it.upstream.grpc.streams.get() for _ in range(41)]
        drop(known)
        assert {await call.code() for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}
        assert sum(stream.cancelled.is_set() for stream in streams) == 40
        assert not other.done()
        next(stream for stream in streams if not stream.cancelled.is_set()).end()
        await other.done_writing()
        assert await other.code() is grpc.StatusCode.OK


def generate(number: int = 1, verb: bytes = b"generate_stream") -> bytes:
    head = b"POST /v2/models/m/%b HTTP/1.1\r\nHost: localhost\r\nx-api-key: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (verb, key_text(number).encode(), len(BODY)) + BODY


async def sse(it: Gateway) -> Client:
    client = await it.connect()
    await client.send(generate(1))
    assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    return client


@pytest.mark.parametrize("end", ENDS)
async def test_an_event_stream_ends_with_an_error_event(end: Callable[[ObjectMirror], None]) -> None:
    known, stream = known_keys(), FakeHttpStream(head=EVENT_STREAM)

    upstream = FakeUpstream(http=FakeHttp(streams=lambda _: stream))
    async with gateway(upstream, governed=governance(known, authentication=True)) as it, asyncio.timeout(WITHIN_S):
        client = await sse(it)
        stream.put(EVENTS[0])
        assert await chunk(client) == EVENTS[0]
        end(known)
        event = await chunk(client)
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        assert "API key" in json.loads(event[6:])["error"]
        assert await chunk(client) == b"", "and the body has its end"
        await stream.closed.wait()
        assert it.recorder.outcomes == [Outcome.ABANDONED]


async def test_a_model_that_never_pauses_is_no_way_around_it() -> None:
    known = known_keys()

    class Endless(FakeHttpStream):
        async def receive(self) -> bytes | None:
            await asyncio.sleep(0)
            return EVENTS[0]

    stream = Endless(head=EVENT_STREAM)

    upstream = FakeUpstream(http=FakeHttp(streams=lambda _: stream))
    async with gateway(upstream, governed=governance(known, authentication=True)) as it, asyncio.timeout(WITHIN_S):
        client = await sse(it)
        drop(known)
        while (piece := await chunk(client)) == EVENTS[0]:
            pass
        assert b'"error"' in piece
        await stream.closed.wait()


async def test_a_client_that_does_not_read_keeps_nothing_at_triton() -> None:
    known, stream = known_keys(), FakeHttpStream(head=EVENT_STREAM)

    upstream = FakeUpstream(http=FakeHttp(streams=lambda _: stream))
    async with gateway(upstream, governed=governance(known, authentication=True)) as it, asyncio.timeout(WITHIN_S):
        client = await it.connect(receive_buffer_bytes=4096)
        await client.send(generate())
        stream.put(*[bytes(1 << 20)] * 16)
        while not stream.taken or stream.taken == 16:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert stream.taken < 16, "the client is behind"
        drop(known)
        await stream.closed.wait()


async def test_one_that_waits_for_its_first_event_is_refused_and_an_answer_that_is_no_event_stream_breaks_off() -> None:
    known, stream = known_keys(), FakeHttpStream(head=EVENT_STREAM.replace(b"text/event-stream", b"application/json"))
    begun = asyncio.Event()

    async def never(*_: object, **__: object) -> FakeHttpStream:
        begun.set()
        await asyncio.Event().wait()
        return stream

    upstream = FakeUpstream(http=FakeHttp(streams=lambda _: stream))
    async with gateway(upstream, governed=governance(known, authentication=True)) as it, asyncio.timeout(WITHIN_S):
        under_way = await it.connect()
        await under_way.send(generate(verb=b"generate"))
        await under_way.reader.readuntil(b"\r\n\r\n")
        upstream.http.stream = never  # type: ignore[method-assign]
        waiting = await it.connect()
        await waiting.send(generate())
        await begun.wait()
        drop(known)
        assert (await waiting.answer()).status == 401
        assert await under_way.is_closed_by_server()


class Answering:
    """Application of jobs, or of files, that answers everything with one stream, once it may."""

    def __init__(self, stream: FakeHttpStream) -> None:
        self.stream, self.asked, self.may_answer = stream, asyncio.Event(), asyncio.Event()

    async def answer(self, request: HttpRequest, route: V2Route, principal: Principal) -> HttpAnswer | HttpStream:
        self.asked.set()
        await self.may_answer.wait()
        return self.stream


KEPT = [f"/v2/jobs/job-{1:032x}/result", "/v1/files/file-1/content"]


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nx-api-key: {key_text(1)}\r\n\r\n".encode()


@pytest.mark.parametrize("path", KEPT)
async def test_what_a_job_or_a_batch_has_come_to_is_sent_no_further(path: str) -> None:
    known, its = known_keys(), Answering(FakeHttpStream(head=EVENT_STREAM.replace(b"text/event-stream", b"application/octet-stream")))
    its.may_answer.set()

    async with gateway(governed=governance(known, authentication=True), jobs=its, batches=its) as it, asyncio.timeout(WITHIN_S):
        client = await it.connect()
        await client.send(get(path))
        await client.reader.readuntil(b"\r\n\r\n")
        its.stream.put(b"the first part")
        assert await chunk(client) == b"the first part"
        drop(known)
        await its.stream.closed.wait()
        assert await client.is_closed_by_server(), "without the last chunk, by which the client knows that it is incomplete"


@pytest.mark.parametrize("path", [*KEPT, f"/v2/jobs/job-{1:032x}"])
async def test_who_waits_for_it_is_refused(path: str) -> None:
    known, its = known_keys(), Answering(FakeHttpStream(head=EVENT_STREAM))

    async with gateway(governed=governance(known, authentication=True), jobs=its, batches=its) as it, asyncio.timeout(WITHIN_S):
        client = await it.connect()
        await client.send(get(path))
        await its.asked.wait()
        drop(known)
        assert (await client.answer()).status == 401
