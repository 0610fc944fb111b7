"""ModelStreamInfer between grpc's own client and a fake Triton's streams."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import h2.events
import h2.settings
import pytest
from tritonclient.grpc import service_pb2

from control_plane.core.endpoints import ONLY
from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.infer_call import Frontend, Outcome
from tests.fakes import FakeGrpc
from tests.wire import services
from tests.wire.grpc.grpc_streams_bench import answer, begun, has_ended, opened, request, send
from tests.wire.grpc_frontend import MAX_MESSAGE_BYTES, frontend, infer_message, until


async def refusal(call: grpc.aio.StreamStreamCall) -> tuple[str, str]:
    """The id and text of an error message on the stream."""
    told = service_pb2.ModelStreamInferResponse.FromString(await call.read())
    return told.infer_response.id, told.error_message


class TestRelay:
    async def test_messages_both_ways_byte_for_byte_and_in_order(self) -> None:
        async with frontend() as it:
            call, stream = await begun(it)
            for number in range(200):
                message = request(id_=str(number)) + b"\xfa\x7f\x03abc"
                await call.write(message)
                assert await stream.sent.get() == message
                stream.put(answer(str(number)), answer("again"))
                assert [await call.read(), await call.read()] == [answer(str(number)), answer("again")]
            await call.done_writing()
            assert await stream.sent.get() is None
            stream.put(answer("last"))
            stream.end()
            assert await call.read() == answer("last")
            assert await has_ended(call)
            assert await call.code() is grpc.StatusCode.OK
            records = [(each.model_name, each.frontend, each.outcome) for each in it.recorder.records]
            assert records == [("m", Frontend.GRPC_STREAM, Outcome.ANSWERED)]

    async def test_while_it_is_open_it_shows_that_its_model_computes(self) -> None:
        async with frontend() as it:
            streams, loop = it.inference.dispatch.streams, asyncio.get_running_loop()
            call, stream = await begun(it)
            assert not streams.go_on(ONLY, "m")
            stream.heard_s = loop.time()
            assert streams.go_on(ONLY, "m")
            stream.end()
            await until(lambda: stream.answers.empty())
            await call.write(request(id_="2"))
            second = await it.upstream.grpc.streams.get()
            stream.heard_s, second.heard_s = 0.0, loop.time()
            assert await second.sent.get() == request(id_="2")
            assert streams.go_on(ONLY, "m"), "the one that it answers on now"
            second.end()
            await call.done_writing()
            assert await has_ended(call)
            await until(lambda: not streams.go_on(ONLY, "m"))

    async def test_it_ends_with_the_process_of_its_model_and_goes_on_with_that_of_another(self) -> None:
        async with frontend() as it:
            call, stream = await begun(it)
            streams = it.inference.dispatch.streams
            streams.died(ONLY, "other")
            stream.put(answer("a"))
            assert await call.read() == answer("a")
            streams.died(ONLY, "m")
            assert await has_ended(call)
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert await call.details() == f"the Python process of 'm' on server '{ONLY}' has died; try again shortly"
            assert stream.cancelled.is_set()

    async def test_one_that_waits_for_nothing_outlives_the_process_of_its_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(services, "READ_TIMEOUT_S", 0.05)
        async with frontend() as it:
            call, stream = await begun(it)
            await asyncio.sleep(0.1)
            it.inference.dispatch.streams.died(ONLY, "m")
            await call.write(request(id_="2"))
            assert await stream.sent.get() == request(id_="2")
            assert not stream.cancelled.is_set()

    async def test_what_triton_ends_under_twice_is_refused(self) -> None:
        async with frontend() as it:
            for code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION):
                call, stream = await begun(it)
                stream.is_broken_off = True
                asyncio.get_running_loop().call_later(0.1, it.servers.lost, "Triton has crashed")
                stream.end(14, "closed")
                assert await has_ended(call)
                assert await call.code() is code
                it.servers.up(it.upstream)
            call = it.stream()
            await call.write(request())
            assert "2 processes died under it" in (await refusal(call))[1]
            assert it.upstream.grpc.streams.empty()
            innocent = infer_message(content=b"\1\0\0\0")
            await call.write(innocent)
            assert await (await it.upstream.grpc.streams.get()).sent.get() == innocent

    async def test_a_connection_that_breaks_while_triton_lives_on_blames_nobody(self) -> None:
        async with frontend() as it:
            call, stream = await begun(it)
            stream.is_broken_off = True
            stream.end(14, "closed")
            assert await has_ended(call)
            assert not it.inference.dispatch.deaths.watches("m")

    async def test_a_stub_that_triton_takes_for_dead_and_nobody_has_seen_to_die_is_told_of(self) -> None:
        async with frontend() as it:
            told = list[str]()
            it.servers.suspect = lambda server, model, since_s: told.append(model)
            call, stream = await begun(it)
            words = "Stub process 'm_0_0' is not healthy."
            for error in (f"no such word: {words}", words):
                assert not told
                stream.put(answer(error))
                assert await call.read() == answer(error)
            assert told == ["m"]
            other = service_pb2.ModelStreamInferResponse(error_message=words)
            other.infer_response.model_name = "other"
            stream.put(other.SerializeToString())
            assert await call.read() == other.SerializeToString()
            assert told == ["m"]

    async def test_a_stream_without_messages_ends_well_and_opens_none(self) -> None:
        async with frontend() as it:
            call = it.stream()
            await call.done_writing()
            assert await has_ended(call)
            assert await call.code() is grpc.StatusCode.OK
            assert it.upstream.grpc.streams.empty()

    async def test_metadata_goes_on_and_tritons_head_comes_back(self) -> None:
        async with frontend() as it:
            call = it.stream(metadata=(("x-tenant", "a"),))
            await call.write(request())
            stream = await it.upstream.grpc.streams.get()
            assert (b"x-tenant", b"a") in stream.head.metadata
            stream.headers = (*stream.headers, (b"x-early", b"1"))
            stream.put(answer("a"))
            await call.read()
            assert ("x-early", "1") in [tuple(pair) for pair in await call.initial_metadata()]
            stream.end()
            await call.done_writing()
            assert await has_ended(call)

    async def test_large_messages(self) -> None:
        async with frontend() as it:
            large = infer_message(padding=MAX_MESSAGE_BYTES - 100)
            call, stream = await begun(it, large)
            stream.put(bytes(8 << 20))
            assert await call.read() == bytes(8 << 20)
            stream.end()
            await call.done_writing()
            assert await has_ended(call)

    async def test_several_clients_never_share_a_stream(self) -> None:
        async with frontend() as it:
            (first, one), (second, two) = await begun(it), await begun(it)
            two.put(answer("two"))
            one.put(answer("one"))
            assert (await first.read(), await second.read()) == (answer("one"), answer("two"))
            for call, stream in ((first, one), (second, two)):
                stream.end()
                await call.done_writing()
                assert await has_ended(call)


class TestEnd:
    async def test_a_stream_of_tritons_that_fails_ends_the_call_with_its_status(self) -> None:
        async with frontend() as it:
            call, stream = await begun(it)
            stream.put(answer("before"))
            assert await call.read() == answer("before")
            stream.end(9, "no more \u00e4", (b"x-why", b"because"))
            assert await has_ended(call)
            assert (await call.code(), await call.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "no more \u00e4")
            assert ("x-why", "because") in [tuple(pair) for pair in await call.trailing_metadata()]
            assert it.recorder.outcomes == [Outcome.UPSTREAM_ERROR]

    async def test_one_that_fails_before_any_answer(self) -> None:
        async with frontend() as it:
            call, stream = await begun(it)
            stream.headers = ()
            stream.end(14, "gone")
            assert await has_ended(call)
            assert (await call.code(), await call.details()) == (grpc.StatusCode.UNAVAILABLE, "gone")

    async def test_after_one_that_triton_ended_well_a_later_message_opens_another(self) -> None:
        async with frontend() as it:
            call, first = await begun(it)
            first.put(answer("a"))
            first.end()
            assert await call.read() == answer("a")
            await until(lambda: first.answers.empty())
            await call.write(request(id_="2"))
            second = await it.upstream.grpc.streams.get()
            assert await second.sent.get() == request(id_="2")
            second.end()
            await call.done_writing()
            assert await has_ended(call)
            assert await call.code() is grpc.StatusCode.OK

    async def test_an_error_as_status(self) -> None:
        """`triton_grpc_error` makes Triton crash: `protocols/header_forwarding` keeps it from there."""
        told = service_pb2.ModelStreamInferResponse(error_message="too small")
        told.infer_response.model_name = "m"

        async with frontend() as it:
            call = it.stream(metadata=(("triton_grpc_error", "true"), ("x-tenant", "a")))
            await call.write(request())
            stream = await it.upstream.grpc.streams.get()
            assert (b"x-tenant", b"a") in stream.head.metadata
            stream.put(answer("of a request that no model saw"))
            assert await call.read() == answer("of a request that no model saw")
            stream.put(told.SerializeToString(), answer("never seen"))
            assert await has_ended(call)
            assert (await call.code(), await call.details()) == (grpc.StatusCode.INTERNAL, "too small")
            await stream.cancelled.wait()


class TestRefusals:
    """Refused requests are answered on the stream, which continues."""

    @pytest.mark.parametrize(
        ("message", "id_", "text"),
        [
            pytest.param(infer_message(id_="17", datatype="FP8"), "17", "invalid datatype", id="an unknown datatype"),
            pytest.param(infer_message(id_="18", content=b"\0"), "18", "Expected 4, got 1", id="too few bytes"),
            pytest.param(b"\xff\xff", "", "not a ModelInferRequest", id="no message at all"),
        ],
    )
    async def test_name_the_request(self, message: bytes, id_: str, text: str) -> None:
        async with frontend() as it:
            call, stream = await begun(it)
            await call.write(message)
            told = await refusal(call)
            assert told[0] == id_
            assert text in told[1]
            await call.write(request(id_="next"))
            assert await stream.sent.get() == request(id_="next")
            stream.end()
            await call.done_writing()
            assert await has_ended(call)
            assert await call.code() is grpc.StatusCode.OK

    async def test_of_the_first_message_needs_no_triton(self) -> None:
        async with frontend() as it:
            call = it.stream()
            await call.write(infer_message(id_="1", datatype="FP8"))
            assert (await refusal(call))[0] == "1"
            await call.done_writing()
            assert await has_ended(call)
            assert it.upstream.grpc.streams.empty()

    async def test_shared_memory(self) -> None:
        shared = service_pb2.ModelInferRequest(model_name="m", id="5")
        shared.inputs.add(name="X", datatype="FP32", shape=[1]).parameters["shared_memory_region"].string_param = "r"

        async with frontend() as it:
            call = it.stream()
            await call.write(shared.SerializeToString())
            id_, text = await refusal(call)
            assert (id_, "--allow-shared-memory" in text) == ("5", True)
            await call.done_writing()
            assert await has_ended(call)

    async def test_a_message_beyond_the_limit_ends_the_call(self) -> None:
        async with frontend() as it:
            call, stream = await begun(it)
            stream.put(answer("before"))
            assert await call.read() == answer("before")
            await call.write(infer_message(padding=MAX_MESSAGE_BYTES))
            assert await has_ended(call)
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await stream.cancelled.wait()

    async def test_behind_an_answer_its_status_is_trailers_and_nothing_else(self) -> None:
        async with frontend() as it:
            peer = await opened(it)
            await send(peer, request())
            stream = await it.upstream.grpc.streams.get()
            stream.put(answer("before"))
            await peer.wait_for(h2.events.DataReceived)
            peer.state.send_data(1, b"\0\xff\xff\xff\xff")
            await peer.flush()
            trailers = dict((await peer.wait_for(h2.events.TrailersReceived)).headers)
            assert trailers["grpc-status"] == "8"
            assert set(trailers) == {"grpc-status", "grpc-message"}

    async def test_a_large_message_without_room_in_the_budget_ends_the_call(self) -> None:
        async with frontend(budget_bytes=100_000) as it:
            call = it.stream()
            await call.write(infer_message(padding=MAX_MESSAGE_BYTES - 100))
            assert await has_ended(call)
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert it.budget.held_bytes == 0

    async def test_without_a_server_it_is_unavailable(self) -> None:
        async with frontend() as it:
            it.servers.down("Triton is restarting")
            call = it.stream()
            assert await has_ended(call)
            assert (await call.code(), await call.details()) == (
                grpc.StatusCode.UNAVAILABLE,
                "Triton is restarting; try again shortly",
            )
            assert it.recorder.outcomes == [Outcome.UNAVAILABLE]

    async def test_when_no_stream_can_be_opened_it_is_unavailable(self) -> None:
        async with frontend(FakeGrpc(cannot_open=UpstreamUnavailable("refused"))) as it:
            call = it.stream()
            await call.write(request())
            assert await has_ended(call)
            assert (await call.code(), await call.details()) == (grpc.StatusCode.UNAVAILABLE, "refused")
