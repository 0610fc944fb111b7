"""The request log's line for each kind of ending: route, model, server, status, error and id."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.infer_call import Outcome
from control_plane.core.model import UNKNOWN_MODEL, ModelState
from control_plane.inference.caching.cached_inference import CachedInference
from control_plane.inference.governance import Governance
from control_plane.metering.domain.usage import UsageEvent
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.grpc import GrpcAnswer, status_answer
from control_plane.protocols.http1 import make_answer
from control_plane.triton.ports import GrpcCall
from tests.fakes import FakeGrpc, FakeUpstream
from tests.fakes.governance import FakeMeter, api_key, governance, key_text, known_state
from tests.fakes.triton.text_model import FakeTextModel
from tests.wire.gateway import Client, gateway, infer_request
from tests.wire.grpc_frontend import INFER, Bench, frontend, infer_message
from tests.wire.h2_calls import HEAD, begin, status

KEY = f"x-api-key: {key_text(1)}\r\n".encode()
OTHERS = f"x-api-key: {key_text(2)}\r\n".encode()
METADATA = (("x-api-key", key_text(1)),)
BODY = b'{"id":"i-1","inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}]}'


def governed(meter: FakeMeter, *, requests_per_s: float | None = None) -> Governance:
    keys = (api_key(1, "infer:*"), api_key(2, "infer:other"))
    tenant = Tenant("team", requests_per_s=requests_per_s, burst=None if requests_per_s is None else 1)
    return governance(known_state(keys=keys, tenants=(tenant,), routes=(Route("r", "m"),)), authentication=True, meter=meter)


def told(event: UsageEvent) -> tuple[Any, ...]:
    return event.route, event.model, event.server, event.status, event.error, event.request_id


def keeping() -> CachedInference:
    fingerprints = Fingerprints()
    fingerprints.change({"m": Fingerprint(bytes(32), is_cacheable=True)})
    return CachedInference(ResponseCache(fingerprints, EvictingCache(1 << 20)))


def raising(error: Exception) -> Any:
    def answer(request: object) -> Any:
        raise error

    return answer


async def refused(it: Bench, message: bytes, **more: Any) -> grpc.aio.AioRpcError:
    return await it.failure(INFER, message, metadata=METADATA, **more)


HTTP_FAILURES = [
    pytest.param(lambda _: make_answer(400, b'{"error":"wrong shape"}'), ("r", "m", "triton", 400, "wrong shape", "i-1"), id="model"),
    pytest.param(raising(DeadlineExceeded("late")), ("r", "m", "triton", 504, "late", "i-1"), id="deadline"),
    pytest.param(raising(UpstreamUnavailable("gone")), ("r", "m", "triton", 503, "gone", "i-1"), id="gone"),
    pytest.param(raising(KeyError("a defect")), ("r", "m", "triton", 500, "internal error of the gateway", "i-1"), id="defect"),
]


@pytest.mark.parametrize(("answer", "expected"), HTTP_FAILURES)
async def test_failures_over_http(answer: Any, expected: tuple[Any, ...], caplog: pytest.LogCaptureFixture) -> None:
    meter = FakeMeter()
    async with gateway(governed=governed(meter)) as it:
        it.inference.models.answered("m")
        it.upstream.http.answer = answer
        await (await it.connect()).ask(infer_request(BODY, headers=KEY, model=b"r"))
        assert it.recorder.records[0].model_name == "m"
    assert [told(event) for event in meter.events] == [expected]


GRPC_FAILURES = [
    pytest.param(lambda _: status_answer(3, "wrong shape"), ("r", "m", "triton", 3, "wrong shape", "i-1"), id="model"),
    pytest.param(raising(UpstreamUnavailable("gone")), ("r", "m", "triton", 14, "gone", "i-1"), id="gone"),
]


@pytest.mark.parametrize(("answer", "expected"), GRPC_FAILURES)
async def test_failures_over_grpc(answer: Any, expected: tuple[Any, ...]) -> None:
    meter = FakeMeter()
    async with frontend(FakeGrpc(answer=answer), governed=governed(meter)) as it:
        it.inference.models.answered("m")
        await refused(it, infer_message(model="r", id_="i-1"))
        assert it.recorder.records[0].model_name == "m"
    assert [told(event) for event in meter.events] == [expected]


async def test_requests_of_a_stream() -> None:
    meter = FakeMeter()

    def answer(call: GrpcCall) -> GrpcAnswer:
        return status_answer(3, "wrong shape")

    async with frontend(FakeGrpc(answer=answer), governed=governed(meter)) as it:
        it.upstream.control.decoupled = {"m": False, "d": True, "other": False}
        for name in ("m", "d"):
            it.inference.models.answered(name)
        call = it.stream(metadata=(*METADATA, ("x-request-id", "head")))
        for model, id_ in (("r", "1"), ("m", "")):
            await call.write(infer_message(model=model, id_=id_))
            assert service_pb2.ModelStreamInferResponse.FromString(await call.read()).error_message == "wrong shape"
        await call.write(infer_message(model="m", datatype="FP8"))
        await call.read()
        await call.write(infer_message(model="d", id_="2"))
        upstream = await it.upstream.grpc.streams.get()
        assert await upstream.sent.get()
        await call.done_writing()
        assert await upstream.sent.get() is None
        upstream.end()
        await call.code()
        assert [each.model_name for each in it.recorder.records] == ["m"]
    wrong, of_the_head, unreadable, decoupled = (told(event) for event in meter.events)
    assert wrong == ("r", "m", "triton", 3, "wrong shape", "1")
    assert of_the_head == ("m", "m", "triton", 3, "wrong shape", "head")
    assert unreadable[:4] == ("m", "m", "", 3)
    assert decoupled == ("d", "d", "triton", 0, "", "2")


async def test_hits_and_those_who_join() -> None:
    meter = FakeMeter()
    async with gateway(governed=governed(meter), cached=keeping()) as it:
        it.upstream.http.calls.hold()
        first, second = await it.connect(), await it.connect()
        await first.send(infer_request(BODY, headers=KEY))
        await it.upstream.http.calls.arrivals.get()
        await second.send(infer_request(BODY.replace(b"i-1", b"i-2"), headers=KEY))
        while len(it.server._connections) < 2 or it.inference.in_flight < 2:
            await asyncio.sleep(0.001)
        it.upstream.http.answer = lambda _: make_answer(200, b'{"model_name":"m"}')
        it.upstream.http.calls.may_answer.set()
        for client in (first, second):
            assert (await client.answer()).status == 200
        await first.ask(infer_request(BODY.replace(b"i-1", b"i-3"), headers=KEY))
    by_id = {event.request_id: event for event in meter.events}
    assert (by_id["i-1"].server, by_id["i-1"].status) == ("triton", 200)
    assert told(by_id["i-2"])[:4] == ("m", "m", "triton", 200)  # whose answer it was given


@pytest.mark.parametrize("times", [2, 4])
async def test_what_comes_again_byte_for_byte_has_the_id_of_its_head(times: int) -> None:
    meter = FakeMeter()
    body = BODY.replace(b'"id":"i-1",', b"")
    async with gateway(governed=governed(meter), cached=keeping()) as it:
        it.upstream.http.answer = lambda _: make_answer(200, b'{"model_name":"m"}')
        client = await it.connect()
        for _ in range(times):
            await client.ask(infer_request(body, headers=KEY + b"x-request-id: head\r\n"))
    async with frontend(governed=governed(meter), cached=keeping()) as it:
        for _ in range(times):
            await it.call(INFER, infer_message(), metadata=(*METADATA, ("x-request-id", "head")))
    assert [event.request_id for event in meter.events] == ["head"] * 2 * times
    assert [(event.model, event.outcome) for event in meter.events] == [("m", Outcome.ANSWERED)] * 2 * times
    assert sum(event.cache_hit for event in meter.events) == 2 * (times - 1)
    assert {event.server for event in meter.events if event.cache_hit} == {""}


async def ask_embeddings(client: Client, body: Any, *, key: bytes = KEY) -> int:
    data = json.dumps(body).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: h\r\n%bx-request-id: head\r\nContent-Length: %d\r\n\r\n" % (key, len(data))
    return (await client.ask(head + data)).status


async def test_embeddings() -> None:
    meter = FakeMeter()
    upstream = FakeUpstream()
    upstream.http.answer = FakeTextModel()
    upstream.control.states = {"m": ModelState.READY}
    async with gateway(upstream, governed=governed(meter)) as it:
        await it.inference.models.refresh()
        client = await it.connect()
        assert await ask_embeddings(client, {"model": "r", "input": "a"}) == 200
        assert await ask_embeddings(client, {"model": "r", "input": "a", "dimensions": 99}) == 400
        assert await ask_embeddings(client, {"model": "r", "input": 7}) == 400
        assert await ask_embeddings(client, {"model": "r", "input": "a"}, key=OTHERS) == 403
        assert await ask_embeddings(client, {"model": "nowhere", "input": "a"}) == 404
        assert await ask_embeddings(client, {"model": ["r"], "input": "a"}) == 400
    assert [(event.route, event.model, event.status, event.request_id) for event in meter.events] == [
        ("r", "m", 200, "head"),
        ("r", "m", 400, "head"),
        ("r", "m", 400, "head"),
        ("r", "m", 403, "head"),
        (UNKNOWN_MODEL, UNKNOWN_MODEL, 404, "head"),
        (UNKNOWN_MODEL, UNKNOWN_MODEL, 400, "head"),
    ]
    assert meter.events[0].server == "triton"
    assert all(event.error for event in meter.events[1:])


async def test_beyond_a_limit_its_model_is_seen_as_far_as_that_is_cheap() -> None:
    meter = FakeMeter()
    async with gateway(governed=governed(meter, requests_per_s=1e-6)) as it:
        it.inference.models.answered("m")
        client = await it.connect()
        await client.ask(infer_request(BODY, headers=KEY))
        assert (await client.ask(infer_request(BODY, headers=KEY, model=b"r"))).status == 429
        assert await ask_embeddings(client, {"model": "r", "input": "a"}) == 429
        assert await ask_embeddings(client, {"model": "r", "input": "a" * 20_000}) == 429
    async with frontend(governed=governed(meter, requests_per_s=1e-6)) as it:
        it.inference.models.answered("m")
        await it.call(INFER, infer_message(), metadata=METADATA)
        await refused(it, infer_message(model="r"))
        await refused(it, infer_message(model="r", padding=2000), compression=grpc.Compression.Gzip)
        await refused(it, infer_message(model="r", padding=100_000))
        await refused(it, b"\xff")
    refusals = [(event.route, event.model, event.status) for event in meter.events if event.outcome is Outcome.REFUSED]
    unseen = (UNKNOWN_MODEL, UNKNOWN_MODEL)
    assert refusals == [*[("r", "m", 429)] * 3, ("r", "m", 8), (*unseen, 8), (*unseen, 8), (*unseen, 8)]


async def test_a_large_message_beyond_a_limit_is_refused_before_it_has_come() -> None:
    meter = FakeMeter()
    async with frontend(governed=governed(meter, requests_per_s=1e-6)) as it:
        await it.call(INFER, infer_message(), metadata=METADATA)
        peer = await it.peer()
        await begin(peer, head=[*HEAD, ("x-api-key", key_text(1))], ends=False)
        peer.state.send_data(1, b"\0" + (500_000).to_bytes(4, "big") + bytes(1000))
        await peer.flush()
        assert await status(peer) == "8"
    assert [event.outcome for event in meter.events] == [Outcome.ANSWERED, Outcome.REFUSED]
