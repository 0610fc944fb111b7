"""Small bodies that would cost much, at both frontends: decompression bombs, and bodies of very many
parts."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace

import grpc
import pytest
from tritonclient.grpc import service_pb2

from control_plane.frontends.kserve.grpc import ADMINISTRATION_METHODS, READ_METHODS
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from tests.fakes import FakeUpstream
from tests.wire.gateway import INFER, gateway, infer_request
from tests.wire.gateway import LIMITS as HTTP_LIMITS
from tests.wire.grpc_frontend import INFER as MODEL_INFER
from tests.wire.grpc_frontend import Bench, frontend, infer_message

_MIB = 1 << 20
LIMITS = BodyLimits(max_body_bytes=64 * _MIB, max_json_bytes=5 * _MIB, max_elements=100_000, max_fields=10_000)
HTTP = replace(HTTP_LIMITS, max_body_bytes=64 * _MIB)
GZIP = b"Content-Encoding: gzip\r\n"


def zeros(count: int) -> bytes:
    return b'{"inputs":[{"name":"X","datatype":"FP32","shape":[%d],"data":[%b0]}]}' % (count, b"0," * (count - 1))


class TestHttp:
    @pytest.mark.parametrize(
        ("request_", "says"),
        [
            pytest.param(infer_request(gzip.compress(zeros(3 * _MIB)), headers=GZIP), b"TIDEGATE_MAX_INFLATE_RATIO", id="a bomb"),
            pytest.param(infer_request(gzip.compress(zeros(3 * _MIB), 0), headers=GZIP), b"TIDEGATE_MAX_JSON_BYTES", id="packed loosely"),
            pytest.param(infer_request(zeros(3 * _MIB)), b"TIDEGATE_MAX_JSON_BYTES", id="large"),
            pytest.param(infer_request(zeros(100_001)), b"TIDEGATE_MAX_ELEMENTS", id="many elements"),
            pytest.param(infer_request(gzip.compress(zeros(300_000)), headers=GZIP), b"TIDEGATE_MAX_ELEMENTS", id="many, compressed"),
        ],
    )
    async def test_is_refused_before_triton_reads_it(self, request_: bytes, says: bytes) -> None:
        async with gateway(limits=HTTP, body_limits=LIMITS) as it:
            answer = await (await it.connect()).ask(request_)
            assert (answer.status, says in answer.body) == (413, True), answer.body
            assert it.upstream.http.requests == []
            assert it.budget.held_bytes == 0
            assert (await (await it.connect()).ask(infer_request(INFER))).status == 200

    async def test_json_that_is_too_large_is_refused_on_its_head(self) -> None:
        async with gateway(limits=HTTP, body_limits=LIMITS) as it:
            client = await it.connect()
            await client.send(infer_request(zeros(3 * _MIB))[:1000])
            assert (await client.answer()).status == 413

    async def test_elements_that_the_shape_does_not_say_are_refused(self) -> None:
        async with gateway(upstream := FakeUpstream()) as it:
            answer = await (await it.connect()).ask(infer_request(INFER.replace(b"[1]}]", b"[1,2]}]")))
            assert (answer.status, b"takes 1 elements, got 2" in answer.body) == (400, True)
            assert upstream.http.requests == []


def fields(count: int) -> bytes:
    """A message with so many empty outputs."""
    return b"\x32\x00" * count


class TestGrpc:
    @pytest.mark.parametrize(
        ("message", "compression"),
        [
            pytest.param(fields(3 * _MIB), grpc.Compression.Gzip, id="a bomb"),
            pytest.param(fields(2 * _MIB), grpc.Compression.Deflate, id="of the other kind"),
            pytest.param(fields(500_000), grpc.Compression.Gzip, id="a small bomb of many fields"),
            pytest.param(fields(500_000), None, id="many fields"),
            pytest.param(infer_message() + fields(40_000), None, id="many in a request that is one"),
        ],
    )
    async def test_is_refused_before_anybody_parses_it(self, message: bytes, compression: grpc.Compression | None) -> None:
        async with frontend(body_limits=LIMITS) as it:
            error = await it.failure(MODEL_INFER, message, compression=compression)
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            answers = await streamed(it, message, compression)
            for said in (error.details() or "", answers.error_message):
                assert "TIDEGATE_MAX_" in said or "more than 8192 inputs, outputs" in said
            assert it.upstream.grpc.requests == []

    @pytest.mark.parametrize("method", [*READ_METHODS[2:6], ADMINISTRATION_METHODS[1]])
    @pytest.mark.parametrize("make", [lambda: fields(5 * _MIB), lambda: fields(100_000)], ids=["large", "many fields"])
    @pytest.mark.parametrize("compression", [grpc.Compression.Gzip, None])
    async def test_calls_without_tensors_have_small_messages(
        self, method: str, make: Callable[[], bytes], compression: grpc.Compression | None
    ) -> None:
        async with frontend(body_limits=LIMITS) as it:
            error = await it.failure(method, make(), compression=compression)
            assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT), error.details()
            assert it.upstream.grpc.requests == []

    async def test_what_a_message_inflates_to_is_held_of_the_budget(self) -> None:
        message = infer_message(padding=600_000)

        async with frontend(body_limits=LIMITS, budget_bytes=500_000) as it:
            error = await it.failure(MODEL_INFER, message, compression=grpc.Compression.Gzip)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
        async with frontend(body_limits=LIMITS, budget_bytes=700_000) as it:
            await it.call(MODEL_INFER, message, compression=grpc.Compression.Gzip)
            assert it.budget.held_bytes == 0
            assert it.upstream.grpc.requests[0].frame[0] == 1, "it goes on as it came"


async def streamed(it: Bench, message: bytes, compression: grpc.Compression | None) -> service_pb2.ModelStreamInferResponse:
    """The answer to a stream's first message."""
    call = it.stream(compression=compression)
    await call.write(message)
    answer = service_pb2.ModelStreamInferResponse.FromString(await call.read())
    await call.done_writing()
    return answer
