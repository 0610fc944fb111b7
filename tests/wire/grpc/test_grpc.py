"""The gRPC frontend between grpc's own client and a fake Triton."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, UpstreamUnavailable
from control_plane.core.infer_call import Frontend, Outcome
from control_plane.frontends.grpc.server import GrpcServer
from control_plane.frontends.kserve.grpc import READ_METHODS, SERVICE, V2Grpc
from control_plane.host.network.listening import bind_tcp
from control_plane.protocols.grpc import GrpcAnswer, frame_message, message_answer, status_answer, status_fields
from control_plane.triton.ports import GrpcCall
from tests.aio import settle
from tests.fakes import FakeGrpc
from tests.tls_files import Authority
from tests.wire.grpc_frontend import INFER, LIMITS, MAX_MESSAGE_BYTES, frontend, infer_message, message_of, until
from tests.wire.http.http_leaving_bench import freed_at_once

OUTCOMES = {
    grpc.StatusCode.NOT_FOUND: Outcome.MODEL_NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE: Outcome.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: Outcome.DEADLINE_EXCEEDED,
}


class TestInfer:
    async def test_the_message_and_the_answer_pass_byte_for_byte(self) -> None:
        unknown_field = b"\xfa\x7f\x03abc"
        async with frontend() as it:
            message = infer_message() + unknown_field
            assert await it.call(INFER, message) == message
            assert [(call.head.method, message_of(call)) for call in it.upstream.grpc.requests] == [(INFER, message)]
            assert [(each.model_name, each.frontend, each.outcome) for each in it.recorder.records] == [
                ("m", Frontend.GRPC, Outcome.ANSWERED)
            ]

    async def test_an_answer_beyond_grpcs_default_limit(self) -> None:
        async with frontend(FakeGrpc(answer=lambda _: message_answer(bytes(8 << 20)))) as it:
            assert len(await it.call(INFER, infer_message())) == 8 << 20

    @pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
    async def test_tritons_own_status_text_and_trailing_metadata_pass(self, code: grpc.StatusCode) -> None:
        trailing = (("x-a", "1"), ("x-b-bin", b"\x00\xff"))

        answer = status_answer(code.value[0], "why \u00e4\n")
        answer = GrpcAnswer(answer.code, (), (), (*answer.trailers, (b"x-a", b"1"), (b"x-b-bin", b"AP8=")))
        async with frontend(FakeGrpc(answer=lambda _: answer)) as it:
            error = await it.failure(INFER, infer_message())
            assert (error.code(), error.details()) == (code, "why \u00e4\n")
            assert set(trailing) <= {tuple(pair) for pair in error.trailing_metadata()}
            assert it.recorder.outcomes == [OUTCOMES.get(code, Outcome.UPSTREAM_ERROR)]

    @pytest.mark.parametrize(
        ("message", "text"),
        [
            pytest.param(b"\xff\xff\xff", "not a ModelInferRequest", id="no message at all"),
            pytest.param(infer_message()[:-1], "not a ModelInferRequest", id="cut off"),
            pytest.param(infer_message(datatype="FP8"), "invalid datatype", id="an unknown datatype"),
            pytest.param(infer_message(datatype="y" * 100_000), "invalid datatype", id="a very long datatype"),
            pytest.param(infer_message(content=b"\0"), "Expected 4, got 1", id="too few bytes"),
            pytest.param(infer_message(datatype="BYTES", content=b"\xff\xff\xff\xff"), "incomplete string data", id="a broken string"),
        ],
    )
    async def test_what_is_invalid_never_reaches_triton(self, message: bytes, text: str) -> None:
        async with frontend() as it:
            error = await it.failure(INFER, message)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert text in error.details()
            assert it.upstream.grpc.requests == []
            assert it.recorder.outcomes == [Outcome.REFUSED]

    async def test_an_error_that_repeats_a_very_long_name_can_still_be_told(self) -> None:
        request = service_pb2.ModelInferRequest.FromString(infer_message(datatype="FP8"))
        request.inputs[0].name = "\U0001f600" * 50_000
        async with frontend() as it:
            error = await it.failure(INFER, request.SerializeToString())
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error.details().endswith(" ...")

    async def test_a_message_beyond_the_limit_is_refused(self) -> None:
        async with frontend() as it:
            assert len(await it.call(INFER, infer_message(padding=MAX_MESSAGE_BYTES - 100))) < MAX_MESSAGE_BYTES
            error = await it.failure(INFER, infer_message(padding=MAX_MESSAGE_BYTES))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert len(it.upstream.grpc.requests) == 1

    async def test_without_a_server_it_is_unavailable(self) -> None:
        async with frontend() as it:
            it.servers.down("Triton is restarting")
            error = await it.failure(INFER, infer_message())
            assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "Triton is restarting; try again shortly")

    @pytest.mark.parametrize(
        ("raised", "code"),
        [
            (UpstreamUnavailable("gone"), grpc.StatusCode.UNAVAILABLE),
            (DeadlineExceeded("too slow"), grpc.StatusCode.DEADLINE_EXCEEDED),
        ],
    )
    async def test_our_own_errors_are_statuses(self, raised: ControlPlaneError, code: grpc.StatusCode) -> None:
        async with frontend(FakeGrpc(answer=_raising(raised))) as it:
            error = await it.failure(INFER, infer_message())
            assert (error.code(), error.details()) == (code, str(raised))

    async def test_a_defect_is_internal_tells_nothing_and_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.ERROR):
            async with frontend(FakeGrpc(answer=_raising(KeyError("a secret")))) as it:
                error = await it.failure(INFER, infer_message())
                assert error.code() is grpc.StatusCode.INTERNAL
                assert "a secret" not in error.details()
                assert it.recorder.outcomes == [Outcome.FAILED]
        assert "this is a defect" in caplog.text


class TestTime:
    async def test_the_callers_deadline_goes_with_the_call(self) -> None:
        async with frontend() as it:
            await it.call(INFER, infer_message(), timeout=5.0)
            assert it.upstream.grpc.calls.timeouts_s[0] == pytest.approx(5.0, abs=2.0)

    @pytest.mark.parametrize(("method", "timeout_s"), [(INFER, 30.0), (SERVICE + "ModelReady", 20.0)])
    async def test_one_that_gives_none_has_the_default(self, method: str, timeout_s: float) -> None:
        async with frontend() as it:
            await it.call(method, infer_message())
            assert it.upstream.grpc.calls.timeouts_s == [pytest.approx(timeout_s, rel=0.2)]

    @pytest.mark.parametrize("method", [INFER, SERVICE + "ModelReady"])
    async def test_its_end_cancels_the_call_to_triton(self, method: str) -> None:
        async with frontend() as it:
            it.upstream.grpc.calls.hold()
            error = await it.failure(method, infer_message(), timeout=0.2)
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await it.upstream.grpc.calls.cancelled.wait()


class TestLeaving:
    @pytest.mark.parametrize("method", [INFER, SERVICE + "ModelReady"])
    async def test_a_cancelled_call_is_cancelled_in_triton(self, method: str) -> None:
        async with frontend() as it:
            it.upstream.grpc.calls.hold()
            call = it.call(method, infer_message())
            await it.upstream.grpc.calls.arrivals.get()
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            await it.upstream.grpc.calls.cancelled.wait()
            await until(lambda: it.inference.in_flight == 0)
            assert it.recorder.outcomes == ([Outcome.ABANDONED] if method == INFER else [])
            it.upstream.grpc.calls.may_answer.set()
            assert await it.call(method, infer_message()) == infer_message()

    async def test_a_lost_connection_cancels_its_calls_in_triton(self) -> None:
        async with frontend() as it:
            it.upstream.grpc.calls.hold()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{it.port}") as channel:
                calls = [channel.unary_unary(INFER)(infer_message()) for _ in range(5)]
                for _ in calls:
                    await it.upstream.grpc.calls.arrivals.get()
            await it.upstream.grpc.calls.cancelled.wait()
            await until(lambda: it.inference.in_flight == 0)
            assert it.recorder.outcomes == [Outcome.ABANDONED] * 5
            for call in calls:
                with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                    await call
            it.upstream.grpc.calls.may_answer.set()
            assert await it.call(INFER, infer_message()) == infer_message()


class TestMetadata:
    async def test_goes_on_without_what_belongs_to_the_connection(self) -> None:
        sent = (
            ("tenant", "a"),
            ("te-st", "b"),
            ("telemetry-bin", b"\x00\xff"),
            ("user-agent-of-mine", "c"),
            ("content-type-of-mine", "d"),
            ("triton-grpc-protocol-infer-key", "e"),
            ("traceparent", "f"),
            ("x-twice", "1"),
            ("x-twice", "2"),
        )
        expected = [(name.encode(), b"AP8" if isinstance(value, bytes) else value.encode()) for name, value in sent]

        async with frontend() as it:
            await it.call(INFER, infer_message(), metadata=sent, timeout=10)
            metadata = it.upstream.grpc.requests[0].head.metadata
            seen = [each for each in metadata if each[0] in dict(expected)]
            assert sorted(seen, key=itemgetter(0)) == sorted(expected, key=itemgetter(0))  # the values of one name in order
            rest = {name for name, _ in metadata} - set(dict(expected))
            assert rest <= {b"content-type", b"user-agent", b"grpc-accept-encoding", b"accept-encoding"}

    async def test_tritons_own_initial_metadata_comes_back(self) -> None:
        headers = ((b":status", b"200"), (b"content-type", b"application/grpc"), (b"x-early", b"1"))

        async with frontend(FakeGrpc(answer=lambda _: GrpcAnswer(0, headers, (frame_message(b"a"),), status_fields(0, "")))) as it:
            call = it.call(INFER, infer_message())
            assert ("x-early", "1") in [tuple(pair) for pair in await call.initial_metadata()]
            assert await call == b"a"


class TestCompression:
    async def test_a_compressed_message_is_checked_and_goes_on_as_it_came(self) -> None:
        async with frontend() as it:
            message = infer_message(padding=5_000)
            await it.call(INFER, message, compression=grpc.Compression.Gzip)
            call = it.upstream.grpc.requests[0]
            assert (b"grpc-encoding", b"gzip") in call.head.metadata
            assert call.frame[0] == 1
            assert gzip.decompress(message_of(call)) == message

    async def test_one_that_is_invalid_is_refused(self) -> None:
        async with frontend() as it:
            message = infer_message(datatype="FP8", padding=5_000)
            error = await it.failure(INFER, message, compression=grpc.Compression.Deflate)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert it.upstream.grpc.requests == []

    async def test_a_bomb_is_refused(self) -> None:
        async with frontend() as it:
            error = await it.failure(INFER, infer_message(padding=MAX_MESSAGE_BYTES), compression=grpc.Compression.Gzip)
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "decompressed" in error.details()

    @pytest.mark.parametrize("name", ["ServerReady", "ServerMetadata", "LogSettings", "/grpc.health.v1.Health/Check"])
    @pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
    async def test_a_bomb_in_a_call_without_a_model_is_refused(self, name: str, compression: grpc.Compression) -> None:
        method = name if name.startswith("/") else SERVICE + name
        async with frontend() as it:
            error = await it.failure(method, bytes(1 << 20), compression=compression)
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "limit of 65536" in error.details()
            assert it.upstream.grpc.requests == []
            assert await it.call(method, b"\n\1x") == b"\n\1x"


class TestOtherMethods:
    @pytest.mark.parametrize("method", sorted(READ_METHODS))
    async def test_reads_pass_and_are_not_recorded(self, method: str) -> None:
        async with frontend() as it:
            message = service_pb2.ModelReadyRequest(name="m").SerializeToString()
            assert await it.call(method, message) == message
            assert [(call.head.method, message_of(call)) for call in it.upstream.grpc.requests] == [(method, message)]
            assert it.recorder.records == []

    async def test_live_is_ours_also_without_triton(self) -> None:
        async with frontend() as it:
            it.servers.down("x")
            assert service_pb2.ServerLiveResponse.FromString(await it.call(SERVICE + "ServerLive")).live
            assert (await it.failure(SERVICE + "ServerReady")).code() is grpc.StatusCode.UNAVAILABLE

    @pytest.mark.parametrize("method", [SERVICE + "modelInfer", SERVICE, "/other.Service/ModelInfer", "/grpc.health.v1.Health/Watch"])
    async def test_all_others_are_unimplemented_and_never_reach_triton(self, method: str) -> None:
        async with frontend() as it:
            assert (await it.failure(method, infer_message())).code() is grpc.StatusCode.UNIMPLEMENTED
            assert it.upstream.grpc.requests == []


class TestDrain:
    async def test_what_is_in_flight_finishes(self) -> None:
        async with frontend() as it:
            it.upstream.grpc.calls.hold()
            call = it.call(INFER, infer_message())
            await it.upstream.grpc.calls.arrivals.get()
            async with asyncio.TaskGroup() as tasks:
                draining = tasks.create_task(it.server.drain(20.0))
                await asyncio.sleep(0.05)
                assert not draining.done()
                it.upstream.grpc.calls.may_answer.set()
                assert await call == infer_message()
            assert it.recorder.outcomes == [Outcome.ANSWERED]

    async def test_what_outlasts_the_time_is_cut_off_and_told_so(self) -> None:
        async with frontend() as it:
            it.upstream.grpc.calls.hold()
            call = it.call(INFER, infer_message())
            await it.upstream.grpc.calls.arrivals.get()
            await it.server.drain(0.1)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert caught.value.details() == "the gateway is stopping; try again shortly"
            assert caught.value.trailing_metadata()["retry-after"] == "1"
            await it.upstream.grpc.calls.cancelled.wait()
            assert it.recorder.outcomes == [Outcome.UNAVAILABLE]

    async def test_before_it_the_server_is_not_ready_and_answers_all_the_same(self) -> None:
        async with frontend() as it:
            it.servers.is_stopping = True
            assert not service_pb2.ServerReadyResponse.FromString(await it.call(SERVICE + "ServerReady")).ready
            assert await it.call("/grpc.health.v1.Health/Check") == b"\x08\x02", "NOT_SERVING"
            assert service_pb2.ServerLiveResponse.FromString(await it.call(SERVICE + "ServerLive")).live
            assert await it.call(INFER, infer_message()) == infer_message()


class TestListening:
    async def test_ipv6_and_a_unix_socket_beside_it(self, tmp_path: Path) -> None:
        path = str(tmp_path / "s")

        async with frontend() as it, asyncio.TaskGroup() as tasks:
            server = GrpcServer(V2Grpc(it.kserve), LIMITS, it.budget)
            six, unix = bind_tcp("::1", 0, setting="--grpc-port"), socket.socket(socket.AF_UNIX)
            unix.bind(path)
            await server.listen(tasks, six)
            await server.listen(tasks, unix)
            for target in (f"[::1]:{six.getsockname()[1]}", f"unix:{path}"):
                async with grpc.aio.insecure_channel(target) as channel:
                    await channel.unary_unary(SERVICE + "ServerLive")(b"")
                    await channel.unary_unary(SERVICE + "LogSettings")(b"")  # both are local
            await server.drain(0)

    async def test_tls(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        identity = authority.issue("localhost")

        async with frontend() as it, asyncio.TaskGroup() as tasks:
            server = GrpcServer(V2Grpc(it.kserve), LIMITS, it.budget)
            bound = bind_tcp("127.0.0.1", 0, setting="--grpc-port")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(identity.certificate, identity.key)
            context.set_alpn_protocols(["h2"])
            await server.listen(tasks, bound, context)
            credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
            options = (("grpc.ssl_target_name_override", "localhost"), ("grpc.max_receive_message_length", -1))
            target = f"127.0.0.1:{bound.getsockname()[1]}"
            async with grpc.aio.secure_channel(target, credentials, options=options) as channel:
                message = infer_message(padding=900_000)
                assert await channel.unary_unary(INFER)(message) == message
            await server.drain(0)


def _raising(error: Exception) -> Callable[[GrpcCall], GrpcAnswer]:
    def answer(_: GrpcCall) -> GrpcAnswer:
        raise error

    return answer


async def test_what_a_client_that_leaves_had_sent_is_free_at_once() -> None:
    large = infer_message(padding=MAX_MESSAGE_BYTES // 2)

    async with frontend() as it:
        it.upstream.grpc.calls.hold()
        calls = it.upstream.grpc.calls
        with freed_at_once():
            for _ in range(4):
                call = it.call(INFER, large)
                await calls.arrivals.get()
                call.cancel()
                await until(lambda: calls.in_progress == 0)
            await settle()
            it.upstream.grpc.requests.clear()
