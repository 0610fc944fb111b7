"""ModelStreamInfer to ordinary models: each request is sent on as a ModelInfer call."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from control_plane.admission.waiting_room import WaitingLimits
from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.infer_call import Frontend, Outcome, SendFailure
from control_plane.inference.caching.cached_inference import CachedInference
from control_plane.models.fingerprints import Fingerprints
from control_plane.protocols.grpc import PREFIX_BYTES, GrpcAnswer, message_answer, status_answer
from control_plane.triton.ports import GrpcCall
from control_plane.triton.server_state import ServerState
from tests.aio import settle
from tests.fakes import FakeGrpc, FakeUpstream, server_of
from tests.fakes.governance import governance
from tests.wire.grpc.grpc_streams_bench import has_ended
from tests.wire.grpc_frontend import INFER, Bench, frontend, infer_message, message_of, until

ORDINARY = "o"


def request(id_: str, *, sequence: int | str = 0) -> bytes:
    message = service_pb2.ModelInferRequest.FromString(infer_message(model=ORDINARY, id_=id_))
    if isinstance(sequence, str):
        message.parameters["sequence_id"].string_param = sequence
    elif sequence:
        message.parameters["sequence_id"].int64_param = sequence
    serialised: bytes = message.SerializeToString()
    return serialised


def id_of(call: GrpcCall) -> str:
    return str(service_pb2.ModelInferRequest.FromString(message_of(call)).id)


def by_id(call: GrpcCall) -> GrpcAnswer:
    """A ModelInfer answer with the request's id."""
    response = service_pb2.ModelInferResponse(model_name=ORDINARY, model_version="1", id=id_of(call))
    response.outputs.add(name="Y", datatype="FP32", shape=[1])
    response.raw_output_contents.append(b"\1\2\3\4")
    return message_answer(response.SerializeToString())


class Gate:
    """A fake Triton that answers a request when the test lets it."""

    def __init__(self) -> None:
        self.grpc = FakeGrpc(answer=by_id)
        self.arrived: list[str] = []
        self._frontends: dict[str, asyncio.Event] = {}
        self.grpc.unary = self._unary  # type: ignore[method-assign]

    async def _unary(self, call: GrpcCall, *, timeout_s: float, slot: object = None) -> GrpcAnswer:
        self.arrived.append(id_of(call))
        await self._frontend(id_of(call)).wait()
        return by_id(call)

    def let(self, *ids: str) -> None:
        for each in ids:
            self._frontend(each).set()

    def _frontend(self, id_: str) -> asyncio.Event:
        return self._frontends.setdefault(id_, asyncio.Event())


async def read(call: grpc.aio.StreamStreamCall) -> service_pb2.ModelStreamInferResponse:
    return service_pb2.ModelStreamInferResponse.FromString(await call.read())


async def finish(it: Bench, call: grpc.aio.StreamStreamCall) -> None:
    await call.done_writing()
    assert await has_ended(call)
    assert await call.code() is grpc.StatusCode.OK
    assert it.upstream.grpc.streams.empty()


async def test_goes_on_as_a_call_and_comes_back_in_the_streams_envelope() -> None:
    async with frontend(FakeGrpc(answer=by_id)) as it:
        call = it.stream(metadata=(("x-tenant", "a"), ("triton_grpc_error", "true")))
        await call.write(request("17"))
        told = await read(call)
        assert (told.error_message, told.infer_response.id, told.infer_response.raw_output_contents[0]) == ("", "17", b"\1\2\3\4")
        assert told.infer_response.parameters["triton_final_response"].bool_param
        sent = it.upstream.grpc.requests[0]
        assert (sent.head.method, message_of(sent)) == (INFER, request("17"))
        assert (b"x-tenant", b"a") in sent.head.metadata
        await finish(it, call)
        assert [(each.model_name, each.frontend, each.outcome) for each in it.recorder.records] == [
            (ORDINARY, Frontend.GRPC_STREAM, Outcome.ANSWERED)
        ]


async def test_requests_travel_together_and_answers_come_in_their_order() -> None:
    gate = Gate()
    async with frontend(gate.grpc) as it:
        call = it.stream()
        for id_ in "abc":
            await call.write(request(id_))
        await until(lambda: gate.arrived == ["a", "b", "c"])
        gate.let("c", "b")
        await settle()
        gate.let("a")
        assert [(await read(call)).infer_response.id for _ in range(3)] == ["a", "b", "c"]
        await finish(it, call)


@pytest.mark.parametrize("is_cached", [True, False])
async def test_after_the_end_of_triton_a_request_goes_to_the_next_where_the_models_responses_are_cached(is_cached: bool) -> None:
    fingerprints = Fingerprints()
    fingerprints.change({ORDINARY: Fingerprint(b"%032d" % 1, is_cacheable=is_cached)})
    cached = CachedInference(ResponseCache(fingerprints, EvictingCache(1 << 20)))

    def end(call: GrpcCall) -> GrpcAnswer:
        it.servers.lost("Triton has crashed")
        it.servers.up(FakeUpstream(grpc=FakeGrpc(answer=by_id)))
        return status_answer(14, "closed", loss=SendFailure.CONNECTION_LOST)

    async with frontend(FakeGrpc(answer=end), cached=cached) as it:
        call = it.stream()
        await call.write(request("17"))
        told = await read(call)
        assert (told.infer_response.id, told.error_message) == ("17", "" if is_cached else "closed")
        await finish(it, call)


@pytest.mark.parametrize("sequence", [7, "seven"])
async def test_of_a_sequence_one_waits_for_the_other_and_nobody_else_does(sequence: int | str) -> None:
    gate = Gate()
    async with frontend(gate.grpc) as it:
        it.upstream.http.config = b"{}"
        call = it.stream()
        for id_, number in (("a", sequence), ("b", sequence), ("c", sequence), ("x", 8), ("y", 0)):
            await call.write(request(id_, sequence=number))
        await until(lambda: sorted(gate.arrived) == ["a", "x", "y"])
        gate.let("a")
        await until(lambda: gate.arrived[3:] == ["b"])
        gate.let("b", "c", "x", "y")
        assert [(await read(call)).infer_response.id for _ in range(5)] == ["a", "b", "c", "x", "y"]
        await finish(it, call)


async def test_what_waits_for_others_of_its_sequence_waits_in_the_waiting_room() -> None:
    gate, governed = Gate(), governance(waiting=WaitingLimits(requests=2, requests_per_tenant=2, size_bytes=10**6, bytes_per_tenant=10**6))
    async with frontend(gate.grpc, governed=governed) as it:
        it.upstream.http.config = b"{}"
        room, call = governed.admission.slots.room, it.stream()
        for id_ in "abcd":
            await call.write(request(id_, sequence=7))
        refused = await read(call)
        assert (refused.infer_response.id, "requests" in refused.error_message) == ("d", True)
        assert (room.requests, room.size_bytes) == (2, sum(PREFIX_BYTES + len(request(id_, sequence=7)) for id_ in "bc"))
        await call.write(request("e", sequence=7))
        assert (await read(call)).infer_response.id == "e"
        gate.let("a", "b", "c")
        assert [(await read(call)).infer_response.id for _ in range(3)] == ["a", "b", "c"]
        assert gate.arrived == ["a", "b", "c"]
        assert (room.requests, room.size_bytes) == (0, 0)
        await finish(it, call)


async def test_too_many_unanswered_hold_the_client_back() -> None:
    gate = Gate()
    async with frontend(gate.grpc) as it:
        call = it.stream()
        for number in range(200):
            await call.write(request(str(number)))
        await until(lambda: len(gate.arrived) >= 64)
        await settle()
        assert len(gate.arrived) < 80
        gate.let(*map(str, range(200)))
        assert [(await read(call)).infer_response.id for _ in range(200)] == [str(number) for number in range(200)]
        await finish(it, call)


async def test_a_large_request_takes_memory_of_the_budget_until_it_is_answered() -> None:
    gate, id_ = Gate(), "x" * 100_000
    async with frontend(gate.grpc) as it:
        call = it.stream()
        await call.write(request(id_))
        await until(lambda: gate.arrived)
        assert it.budget.held_bytes == PREFIX_BYTES + len(request(id_))
        gate.let(id_)
        assert (await read(call)).infer_response.id == id_
        assert it.budget.held_bytes == 0
        await finish(it, call)


async def test_a_large_request_that_is_refused_takes_no_memory_any_more() -> None:
    async with frontend() as it:
        call = it.stream()
        await call.write(b"\xff" * 100_000)
        assert (await read(call)).error_message
        await until(lambda: it.budget.held_bytes == 0)
        await finish(it, call)


async def test_a_failure_is_told_with_the_requests_id_and_the_stream_goes_on() -> None:
    async with frontend(FakeGrpc(answer=lambda call: status_answer(5, "no such model") if id_of(call) == "1" else by_id(call))) as it:
        call = it.stream()
        for id_ in "12":
            await call.write(request(id_))
        told = await read(call)
        assert (told.error_message, told.infer_response.id) == ("no such model", "1")
        assert (await read(call)).infer_response.id == "2"
        await finish(it, call)


async def test_a_failure_as_status_has_tritons_code_and_ends_the_call() -> None:
    async with frontend(FakeGrpc(answer=lambda _: status_answer(9, "not now"))) as it:
        call = it.stream(metadata=(("triton_grpc_error", "true"),))
        await call.write(request("1"))
        assert await has_ended(call)
        assert (await call.code(), await call.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not now")
        assert it.recorder.outcomes == [Outcome.UPSTREAM_ERROR]


async def test_without_a_server_the_request_fails_and_the_stream_goes_on() -> None:
    async with frontend(FakeGrpc(answer=by_id)) as it:
        call = it.stream()
        await call.write(request("1"))
        assert (await read(call)).infer_response.id == "1"
        it.servers.down("Triton is restarting")
        await call.write(request("2"))
        told = await read(call)
        assert (told.infer_response.id, "Triton is restarting" in told.error_message) == ("2", True)
        it.servers.up(it.upstream)
        await call.write(request("3"))
        assert (await read(call)).infer_response.id == "3"
        await finish(it, call)


async def test_beside_a_decoupled_model_each_goes_its_own_way() -> None:
    async with frontend(FakeGrpc(answer=by_id)) as it:
        call = it.stream()
        await call.write(infer_message(id_="d"))
        stream = await it.upstream.grpc.streams.get()
        assert await stream.sent.get() == infer_message(id_="d")
        await call.write(request("o"))
        assert (await read(call)).infer_response.id == "o"
        await call.done_writing()
        assert await stream.sent.get() is None
        stream.end()
        assert await has_ended(call)
        assert await call.code() is grpc.StatusCode.OK
        assert [id_of(each) for each in it.upstream.grpc.requests] == ["o"]


async def test_one_that_triton_says_is_decoupled_goes_the_other_way_though_it_could_not_say_so_before() -> None:
    """It was frozen then, or the model was not loaded yet."""
    refusal = status_answer(12, "ModelInfer RPC doesn't support models with decoupled transaction policy")
    async with frontend(FakeGrpc(answer=lambda call: refusal)) as it:
        assert ORDINARY not in it.upstream.control.decoupled
        call = it.stream()
        await call.write(request("1"))
        stream = await it.upstream.grpc.streams.get()
        assert await stream.sent.get() == request("1")
        await call.done_writing()
        assert await stream.sent.get() is None
        stream.end()
        assert await has_ended(call)
        assert await call.code() is grpc.StatusCode.OK


async def test_a_cancelled_stream_cancels_what_it_asked() -> None:
    async with frontend(FakeGrpc(answer=by_id)) as it:
        it.upstream.grpc.calls.hold()
        call = it.stream()
        for id_ in "abc":
            await call.write(request(id_))
        await until(lambda: it.upstream.grpc.calls.in_progress == 3)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call.read()
        await until(lambda: it.upstream.grpc.calls.in_progress == 0)
        await until(lambda: it.recorder.outcomes == [Outcome.ABANDONED])


@pytest.mark.parametrize("turns_out_decoupled", [True, False])
async def test_messages_for_other_models_do_not_wait_for_one_that_has_to_be_loaded(turns_out_decoupled: bool) -> None:
    """A model that no server has loaded: whether it is decoupled is unknown until then."""
    async with frontend(FakeGrpc(answer=by_id)) as it:
        fleet = _Fleet(it)
        call = it.stream()
        await call.write(request("cold"))
        await call.write(infer_message(id_="hot"))
        stream = await it.upstream.grpc.streams.get()
        assert await stream.sent.get() == infer_message(id_="hot")
        await call.done_writing()
        fleet.load(ORDINARY, is_decoupled=turns_out_decoupled)
        if turns_out_decoupled:
            assert await stream.sent.get() == request("cold")
        else:
            assert (await read(call)).infer_response.id == "cold"
        assert await stream.sent.get() is None
        stream.end()
        assert await has_ended(call)
        assert fleet.waited_at_most_s <= 30.0


class _Fleet:
    """Fake dispatch and catalogue of a fleet: which servers have which models."""

    def __init__(self, it: Bench) -> None:
        self._it, self._loaded, self.waited_at_most_s = it, asyncio.Event(), 0.0
        self._holders = {"m": [it.upstream]}
        it.inference.dispatch.catalogue = self  # type: ignore[misc, assignment]
        it.inference.dispatch.reading = self._reading  # type: ignore[method-assign]

    def load(self, name: str, *, is_decoupled: bool) -> None:
        self._it.upstream.control.decoupled[name] = is_decoupled
        self._holders[name] = [self._it.upstream]
        self._loaded.set()

    def is_repeatable(self, name: str) -> bool:
        return False

    def servers_of(self, name: str) -> list[ServerState]:
        return [server_of(upstream) for upstream in self._holders.get(name, [])]

    async def _reading(self, name: str, *, timeout_s: float) -> FakeUpstream:
        self.waited_at_most_s = timeout_s
        await self._loaded.wait()
        return self._it.upstream
