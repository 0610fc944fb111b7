"""The sequences of tenants over both protocols: Triton gets ids of which each tenant has its own."""

from __future__ import annotations

import gzip
import json
from random import Random
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from control_plane.protocols.http1 import HttpRequest
from control_plane.triton.ports import GrpcCall
from tests.fakes import FakeHttp, FakeUpstream
from tests.fakes.governance import key_text
from tests.wire.gateway import Gateway, gateway, infer_request
from tests.wire.grpc.grpc_streams_bench import has_ended
from tests.wire.grpc_frontend import INFER, Bench, frontend, message_of
from tests.wire.inference.sequence_ids_bench import TENANTS, governed, message, shown

IDS = [pytest.param(7, id="number"), pytest.param(2**63 + 5, id="large number"), pytest.param("seven", id="text")]
TENSOR = {"name": "X", "datatype": "FP32", "shape": [1]}


def upstream() -> FakeUpstream:
    return FakeUpstream(http=FakeHttp(config=b"{}"))


async def sent(it: Gateway, tenant: str, id_: int | str, *, data: bytes = b"", model: bytes = b"m") -> HttpRequest:
    """A request of a tenant's as it reaches Triton; `data` follows its JSON."""
    tensor: dict[str, Any] = {**TENSOR, "parameters": {"binary_data_size": len(data)}} if data else {**TENSOR, "data": [1]}
    text = json.dumps({"inputs": [tensor], "parameters": {"sequence_id": id_, "sequence_start": True}}).encode()
    length = b"Inference-Header-Content-Length: %d\r\n" % len(text) if data else b""
    headers = b"x-api-key: %b\r\n%b" % (key_text(TENANTS[tenant]).encode(), length)
    answer = await (await it.connect()).ask(infer_request(text + data, headers=headers, model=model))
    assert answer.status == 200
    return it.upstream.http.requests[-1]


def id_in(request: HttpRequest) -> int | str:
    length = request.header(b"inference-header-content-length")
    parameters = json.loads(request.body if length is None else request.body[: int(length)])["parameters"]
    assert parameters["sequence_start"] is True
    found: int | str = parameters["sequence_id"]
    return found


def id_of(told: bytes) -> int | str:
    found = service_pb2.ModelInferRequest.FromString(told).parameters["sequence_id"]
    id_: int | str = found.string_param or found.int64_param
    return id_


async def id_by_call(it: Bench, tenant: str, asked: bytes, **options: Any) -> int | str:
    await it.call(INFER, asked, metadata=shown(tenant), **options)
    call: GrpcCall = it.upstream.grpc.requests[-1]
    return id_of(message_of(call))


@pytest.mark.parametrize("id_", IDS)
@pytest.mark.parametrize("data", [b"", b"\0\0\x80?"], ids=["json", "binary"])
async def test_over_http_two_tenants_never_meet_in_a_sequence(id_: int | str, data: bytes) -> None:
    async with gateway(upstream(), governed=governed()) as it:
        own = id_in(await sent(it, "acme", id_, data=data))
        again, others = id_in(await sent(it, "acme", id_, data=data)), id_in(await sent(it, "other", id_, data=data))
        by_route = id_in(await sent(it, "acme", id_, data=data, model=b"r"))
        assert own == again == by_route != others
        assert id_ not in (own, others)
        assert type(own) is type(others) is type(id_)
        assert it.upstream.http.requests[-1].target == b"/v2/models/m/infer"
        assert bytes(it.upstream.http.requests[-1].body).endswith(data)


@pytest.mark.parametrize("id_", IDS)
@pytest.mark.parametrize("encoding", [b"identity", b"gzip"])
async def test_a_large_body_is_whole_and_its_memory_is_given_back(id_: int | str, encoding: bytes) -> None:
    data = Random(7).randbytes(1_000_000)
    tensor = {**TENSOR, "shape": [len(data) // 4], "parameters": {"binary_data_size": len(data)}}
    text = json.dumps({"parameters": {"sequence_id": id_, "sequence_start": True}, "inputs": [tensor]}).encode()
    fields = b"Inference-Header-Content-Length: %d\r\nContent-Encoding: %b\r\n" % (len(text), encoding)
    async with gateway(upstream(), governed=governed()) as it:
        body = gzip.compress(text + data) if encoding == b"gzip" else text + data
        headers = b"x-api-key: %b\r\n%b" % (key_text(TENANTS["acme"]).encode(), fields)
        answer = await (await it.connect()).ask(infer_request(body, headers=headers))
        assert answer.status == 200
        told = it.upstream.http.requests[-1]
        assert id_in(told) == id_in(await sent(it, "acme", id_)) != id_
        assert told.body[int(told.header(b"inference-header-content-length") or 0) :] == data


@pytest.mark.parametrize("id_", IDS)
async def test_a_sequence_goes_on_over_the_other_protocol_and_at_another_gateway(id_: int | str) -> None:
    async with gateway(upstream(), governed=governed()) as it:
        over_http = [id_in(await sent(it, tenant, id_)) for tenant in TENANTS]
    async with frontend(governed=governed()) as it:
        it.upstream.http.config = b"{}"
        assert [await id_by_call(it, tenant, message(id_)) for tenant in TENANTS] == over_http


@pytest.mark.parametrize("id_", IDS)
async def test_a_large_message_is_in_memory_once(id_: int | str) -> None:
    async with frontend(governed=governed()) as it:
        it.upstream.http.config = b"{}"
        own = await id_by_call(it, "acme", message(id_))
        assert await id_by_call(it, "acme", message(id_, elements=50_000)) == own != id_
        frame = it.upstream.grpc.requests[-1].frame
        assert isinstance(frame, memoryview)
        assert len(frame) < len(frame.obj) <= len(frame) + 64, "the memory in which it came, with the room behind it"
        request = service_pb2.ModelInferRequest.FromString(message_of(it.upstream.grpc.requests[-1]))
        assert request.raw_input_contents[0] == bytes(200_000)


async def test_a_compressed_message_by_a_route_has_the_tenants_own_id() -> None:
    async with frontend(governed=governed()) as it:
        it.upstream.http.config = b"{}"
        own = await id_by_call(it, "acme", message(7))
        found = await id_by_call(it, "acme", message(7, model="r", elements=50_000), compression=grpc.Compression.Gzip)
        assert found == own != 7
        request = service_pb2.ModelInferRequest.FromString(message_of(it.upstream.grpc.requests[-1]))
        assert (request.model_name, request.inputs[0].shape[0], len(request.raw_input_contents[0])) == ("m", 50_000, 200_000)


@pytest.mark.parametrize("id_", [7, "seven"])
async def test_on_a_stream_ordinary_and_decoupled_models_get_the_tenants_own_id(id_: int | str) -> None:
    async with frontend(governed=governed()) as it:
        it.upstream.http.config = b"{}"
        wanted = {tenant: await id_by_call(it, tenant, message(id_)) for tenant in TENANTS}
        assert wanted["acme"] != wanted["other"]
        it.upstream.control.decoupled["o"] = False
        for tenant in TENANTS:
            call = it.stream(metadata=shown(tenant))
            await call.write(message(id_, model="o"))
            await call.read()
            assert id_of(message_of(it.upstream.grpc.requests[-1])) == wanted[tenant]
            await call.write(message(id_))
            stream = await it.upstream.grpc.streams.get()
            told = await stream.sent.get()
            assert told is not None
            assert id_of(told) == wanted[tenant]
            stream.end()
            await call.done_writing()
            assert await has_ended(call)
            assert await call.code() is grpc.StatusCode.OK


async def test_what_triton_might_read_otherwise_is_refused() -> None:
    async with gateway(upstream(), governed=governed()) as it:
        client = await it.connect()
        for value in (b"7.0", b"true", b"-7", b"18446744073709551616"):
            body = b'{"inputs":[],"parameters":{"sequence_id":%b}}' % value
            answer = await client.ask(infer_request(body, headers=b"x-api-key: %b\r\n" % key_text(1).encode()))
            assert (answer.status, b"sequence_id" in answer.body) == (400, True)
        assert it.upstream.http.requests == []


async def test_without_authentication_and_without_a_sequence_requests_go_on_as_they_came() -> None:
    body = b'{"inputs":[],"parameters":{"sequence_id": 7}}'
    async with gateway(upstream()) as it:
        await (await it.connect()).ask(infer_request(body))
        assert it.upstream.http.requests[-1].body == body
    body = b'{"inputs":[],"parameters":{"sequence_id": 0}}'
    async with gateway(upstream(), governed=governed()) as it:
        await (await it.connect()).ask(infer_request(body, headers=b"x-api-key: %b\r\n" % key_text(1).encode()))
        assert it.upstream.http.requests[-1].body == body
