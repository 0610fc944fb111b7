"""Priorities in Triton's queues over both protocols: a tenant names none, so that nobody places himself before others."""

from __future__ import annotations

import json

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.fakes import FakeHttp, FakeUpstream
from tests.wire.gateway import gateway, infer_request
from tests.wire.grpc_frontend import INFER, frontend, infer_message, message_of
from tests.wire.inference.sequence_ids_bench import governed, message, shown

REFUSAL = "parameter 'priority' is the gateway's own where callers have keys: the priority of their tenant decides"
TENSOR = {"name": "X", "datatype": "FP32", "shape": [1]}


def bodies(parameters: dict[str, int]) -> list[tuple[bytes, bytes]]:
    """The header fields and bodies of equal requests with data in JSON and after it."""
    in_json = json.dumps({"inputs": [{**TENSOR, "data": [1]}], "parameters": parameters}).encode()
    text = json.dumps({"inputs": [{**TENSOR, "parameters": {"binary_data_size": 4}}], "parameters": parameters}).encode()
    return [(b"", in_json), (b"Inference-Header-Content-Length: %d\r\n" % len(text), text + bytes(4))]


def with_priority(serialised: bytes) -> bytes:
    request = service_pb2.ModelInferRequest.FromString(serialised)
    request.parameters["priority"].uint64_param = 1
    found: bytes = request.SerializeToString()
    return found


@pytest.mark.parametrize("parameters", [{"priority": 1}, {"priority": 1, "sequence_id": 7}], ids=["alone", "in a sequence"])
async def test_over_http_a_tenants_is_refused_however_often_it_comes(parameters: dict[str, int]) -> None:
    async with gateway(FakeUpstream(http=FakeHttp(config=b"{}")), governed=governed()) as it:
        connection = await it.connect()
        for fields, body in bodies(parameters) * 2:
            key = dict([shown("acme")[0]])["x-api-key"].encode()
            answer = await connection.ask(infer_request(body, headers=b"x-api-key: %b\r\n%b" % (key, fields)))
            assert (answer.status, json.loads(answer.body)["error"]) == (400, REFUSAL)
        assert not it.upstream.http.requests


async def test_over_http_without_keys_it_is_tritons_to_read() -> None:
    async with gateway() as it:
        connection = await it.connect()
        for fields, body in bodies({"priority": 1}):
            assert (await connection.ask(infer_request(body, headers=fields))).status == 200
            assert it.upstream.http.requests[-1].body == body


@pytest.mark.parametrize("plain", [infer_message(), message(7)], ids=["alone", "in a sequence"])
async def test_over_grpc_a_tenants_is_refused_also_on_a_stream(plain: bytes) -> None:
    async with frontend(governed=governed()) as it:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await it.call(INFER, with_priority(plain), metadata=shown("acme"))
            assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, REFUSAL)
        call = it.stream(metadata=shown("acme"))
        await call.write(with_priority(plain))
        assert service_pb2.ModelStreamInferResponse.FromString(await call.read()).error_message == REFUSAL
        call.cancel()
        assert not it.upstream.grpc.requests


async def test_over_grpc_without_keys_it_is_tritons_to_read() -> None:
    async with frontend() as it:
        await it.call(INFER, with_priority(infer_message()))
        assert message_of(it.upstream.grpc.requests[-1]) == with_priority(infer_message())
