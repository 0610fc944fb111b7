"""Requests to a busy model that are refused unparsed, as an equal one was: seen by a body that nobody could parse."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.infer_call import Outcome
from control_plane.inference.caching.cached_inference import CachedInference
from control_plane.inference.governance import Governance
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.route import Route
from control_plane.protocols.grpc import frame_message
from control_plane.protocols.http2.headers import encode_fields
from control_plane.telemetry.shed_reason import ShedReason
from tests.fakes import FakeGrpc
from tests.fakes.governance import FakeMeter, governance, known_state
from tests.wire.gateway import INFER, Client, Gateway, gateway, infer_request
from tests.wire.grpc_frontend import Bench, frontend, infer_message
from tests.wire.h2_calls import RAW_HEAD, WholeCaller
from tests.wire.services import Services

HURRIED = b"tidegate-timeout-ms: 20\r\n"
"""Less time than an answer takes that `PACE_S` was learned of."""
PACE_S = 0.1
GARBAGE, UNPARSABLE = b"?" * len(INFER), 500
"""A body of the same size, and the status of one that cannot be parsed, which is Triton's."""
HELD_BY = infer_request(headers=b"tidegate-timeout-ms: 60000\r\n")


def slow() -> Governance:
    """A model with one slot."""
    return governance(max_in_flight_per_model=1, meter=FakeMeter(has_log=False))


@asynccontextmanager
async def busy_over_http(governed: Governance | None = None, **services: object) -> AsyncIterator[tuple[Gateway, Client]]:
    """A gateway whose model has shown its pace and has a request that does not end; and a client."""
    async with gateway(governed=governed or slow(), **services) as it:  # type: ignore[arg-type]
        client, other = await it.connect(), await it.connect()
        upstream = it.upstream.http
        for _ in range(5):
            upstream.calls.hold()
            asyncio.get_running_loop().call_later(PACE_S, upstream.calls.may_answer.set)
            assert (await other.ask(HELD_BY)).status == 200
        upstream.calls.hold()
        while not upstream.calls.arrivals.empty():
            upstream.calls.arrivals.get_nowait()
        await other.send(HELD_BY)
        await upstream.calls.arrivals.get()
        yield it, client
        upstream.calls.may_answer.set()


async def test_over_http() -> None:
    async with busy_over_http() as (it, client):
        first = await client.ask(infer_request(headers=HURRIED))
        assert first.status == 503
        assert await client.ask(infer_request(GARBAGE, headers=HURRIED)) == first
        assert await client.ask(infer_request(GARBAGE[:-1], headers=HURRIED)) == first  # of about the same size
        assert (await client.ask(infer_request(GARBAGE * 3, headers=HURRIED))).status == UNPARSABLE
        assert (await client.ask(infer_request(GARBAGE, headers=HURRIED, model=b"other"))).status == UNPARSABLE
        assert (await client.ask(infer_request(GARBAGE, headers=b"tidegate-timeout-ms: 21\r\n"))).status == UNPARSABLE
        it.inference.verbatim.flush_counts()
        assert it.recorder.outcomes.count(Outcome.REFUSED) == 3 + 3
        assert it.governed.admission.counts["", ShedReason.DEADLINE] == 3
        assert len(it.upstream.http.requests) == 6


async def test_not_once_the_model_is_free_again() -> None:
    async with busy_over_http() as (it, client):
        first = await client.ask(infer_request(headers=HURRIED))
        it.upstream.http.calls.may_answer.set()
        await seen_in_flight(it, 0)
        assert first.status == 503
        assert (await client.ask(infer_request(GARBAGE, headers=HURRIED))).status == UNPARSABLE


async def test_for_a_second() -> None:
    async with busy_over_http() as (_, client):
        assert (await client.ask(infer_request(headers=HURRIED))).status == 503
        await asyncio.sleep(1.3)
        assert (await client.ask(infer_request(GARBAGE, headers=HURRIED))).status == UNPARSABLE


async def test_not_where_a_request_log_is_kept() -> None:
    async with busy_over_http(governance(max_in_flight_per_model=1)) as (_, client):
        assert (await client.ask(infer_request(headers=HURRIED))).status == 503
        assert (await client.ask(infer_request(GARBAGE, headers=HURRIED))).status == UNPARSABLE


async def test_not_once_the_rules_of_access_have_changed() -> None:
    known = known_state()
    async with busy_over_http(governance(known, max_in_flight_per_model=1, meter=FakeMeter(has_log=False))) as (_, client):
        assert (await client.ask(infer_request(headers=HURRIED))).status == 503
        known.generation += 1
        assert (await client.ask(infer_request(GARBAGE, headers=HURRIED))).status == UNPARSABLE


async def test_not_where_a_route_may_choose_another_model() -> None:
    known = known_state()
    known.routes = {"r": Route("r", "m")}
    async with busy_over_http(governance(known, max_in_flight_per_model=1, meter=FakeMeter(has_log=False))) as (_, client):
        assert (await client.ask(infer_request(headers=HURRIED, model=b"r"))).status == 503
        assert (await client.ask(infer_request(GARBAGE, headers=HURRIED, model=b"r"))).status == UNPARSABLE


async def test_not_where_the_cache_may_have_the_answer() -> None:
    fingerprints = Fingerprints()
    fingerprints.change({"m": Fingerprint(b"1" * 32, is_cacheable=True)})
    cached = CachedInference(ResponseCache(fingerprints, EvictingCache(1 << 20)))
    async with gateway(governed=slow(), cached=cached) as it:
        client, holding, calls = await it.connect(), await it.connect(), it.upstream.http.calls
        for number in b"01234":
            calls.hold()
            asyncio.get_running_loop().call_later(PACE_S, calls.may_answer.set)
            assert (await holding.ask(HELD_BY.replace(b":[1]}", b":[%c]}" % number))).status == 200
        calls.hold()
        await holding.send(HELD_BY.replace(b":[1]}", b":[5]}"))
        await seen_in_flight(it, 1)
        known = infer_request(headers=HURRIED)
        assert (await client.ask(known.replace(b":[1]}", b":[9]}"))).status == 503
        assert (await client.ask(known)).status == 200
        calls.may_answer.set()


async def seen_in_flight(it: Services, count: int) -> None:
    while it.inference.in_flight != count:
        await asyncio.sleep(0.001)


def blocks(timeout: bytes) -> bytes:
    return encode_fields((*RAW_HEAD, (b"grpc-timeout", timeout)))


async def status(caller: WholeCaller, block: bytes, message: bytes) -> bytes:
    seen = await caller.call(block, frame_message(message))
    assert isinstance(seen[-1], list)
    return dict(seen[-1])[b"grpc-status"]


@asynccontextmanager
async def busy_over_grpc() -> AsyncIterator[tuple[Bench, WholeCaller]]:
    async with frontend(FakeGrpc(), governed=slow()) as it:
        caller, calls = WholeCaller(await it.connect()), it.upstream.grpc.calls
        for _ in range(5):
            calls.hold()
            asyncio.get_running_loop().call_later(PACE_S, calls.may_answer.set)
            await it.call(message=infer_message())
        calls.hold()
        held = asyncio.get_running_loop().create_task(_held(it))
        await seen_in_flight(it, 1)
        assert await status(caller, blocks(b"1S"), b"?") == b"3"  # a connection's first block is longer
        yield it, caller
        calls.may_answer.set()
        await held


async def _held(it: Bench) -> None:
    await it.call(message=infer_message())


async def test_over_grpc() -> None:
    message = infer_message()
    garbage = message[:3] + b"?" * (len(message) - 3)  # the model's name is at its beginning
    async with busy_over_grpc() as (it, caller):
        assert await status(caller, blocks(b"20m"), message) == b"14"
        assert await status(caller, blocks(b"20m"), garbage) == b"14"
        assert await status(caller, blocks(b"20m"), garbage * 3) == b"3"
        assert await status(caller, blocks(b"20m"), garbage.replace(b"m", b"n")) == b"3"
        assert await status(caller, blocks(b"21m"), garbage) == b"3"
        it.inference.verbatim.flush_counts()
        assert it.governed.admission.counts["", ShedReason.DEADLINE] == 2
        it.upstream.grpc.calls.may_answer.set()
        await seen_in_flight(it, 0)
        assert await status(caller, blocks(b"20m"), garbage) == b"3"


@pytest.mark.parametrize("named", ["x", "mx"])
async def test_not_by_a_name_that_is_repeated_later(named: str) -> None:
    """The last one counts, also where the first one begins with it."""
    async with busy_over_grpc() as (_, caller):
        assert await status(caller, blocks(b"20m"), infer_message(model=named) + b"\x0a\x01m") == b"14"
        garbage = infer_message(model=named)[: 2 + len(named)] + b"?" * len(infer_message())
        assert await status(caller, blocks(b"20m"), garbage) == b"3"


async def test_not_where_the_size_does_not_say_what_it_costs() -> None:
    packed = HURRIED + b"Content-Encoding: gzip\r\n"
    async with busy_over_http() as (_, client):
        assert (await client.ask(infer_request(gzip.compress(INFER), headers=packed))).status == 503
        assert (await client.ask(infer_request(b"?" * len(gzip.compress(INFER)), headers=packed))).status != 503


@pytest.mark.parametrize("frontend_", ["http", "grpc"])
async def test_not_for_what_goes_on_with_a_sequence(frontend_: str) -> None:
    garbage = b"?" * (len(INFER) - len(b"sequence_id")) + b"sequence_id"
    if frontend_ == "http":
        async with busy_over_http() as (_, client):
            assert (await client.ask(infer_request(headers=HURRIED))).status == 503
            assert (await client.ask(infer_request(garbage, headers=HURRIED))).status == UNPARSABLE
        return
    async with busy_over_grpc() as (_, caller):
        message = infer_message(padding=30)
        assert await status(caller, blocks(b"20m"), message) == b"14"
        garbage = message[:3] + b"?" * (len(message) - 3 - len(b"sequence_id")) + b"sequence_id"
        assert await status(caller, blocks(b"20m"), garbage) == b"3"


async def test_not_for_what_lies_in_shared_memory() -> None:
    region = (
        b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"parameters":{"shared_memory_region":"r","shared_memory_byte_size":4}}]}'
    )
    async with busy_over_http(allow_shared_memory=True) as (_, client):
        assert (await client.ask(infer_request(region, headers=HURRIED))).status == 503
        assert (await client.ask(infer_request(b"?" * len(region), headers=HURRIED))).status == UNPARSABLE


@pytest.mark.parametrize(("padding", "code"), [(1_000, b"14"), (4_000, b"3")])
async def test_not_of_large_heads_which_would_displace_cached_answers(padding: int, code: bytes) -> None:
    message = infer_message()
    async with busy_over_grpc() as (_, caller):
        block = encode_fields((*RAW_HEAD, (b"grpc-timeout", b"20m"), (b"x-padding", b"x" * padding)))
        assert await status(caller, block, message) == b"14"
        assert await status(caller, block, message[:3] + b"?" * (len(message) - 3)) == code


@pytest.mark.parametrize("kept", [0, 1])
async def test_so_many_are_kept(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control_plane.inference.caching.verbatim_cache._MAX_REFUSALS", kept)
    async with busy_over_http() as (_, client):
        assert (await client.ask(infer_request(headers=HURRIED))).status == 503
        assert (await client.ask(infer_request(GARBAGE, headers=HURRIED))).status == (503 if kept else UNPARSABLE)
