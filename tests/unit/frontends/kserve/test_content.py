"""What a request's digest is made of, by which a query of death is known again: without its id."""

from __future__ import annotations

import gzip
import json
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from control_plane.core.principal import ANONYMOUS
from control_plane.frontends.kserve.grpc_infer import GrpcInferRequest, content_of, exact_content_of
from control_plane.frontends.kserve.http_infer import HttpInferRequest
from control_plane.protocols.grpc import GrpcHead
from control_plane.protocols.http1 import HttpRequest
from control_plane.protocols.kserve.tensors.same_inputs import MAX_BYTES
from control_plane.triton.ports import GrpcCall
from tests.unit.fleet.fleet_bench import call


def http_content(request_id: str, data: float) -> tuple[bytes, ...]:
    body = json.dumps({"id": request_id, "inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": [data]}]}).encode()
    asked = call("m")
    asked.request_id = request_id
    context: Any = None
    route: Any = None
    return HttpInferRequest(HttpRequest("POST", "/v2/models/m/infer", [], body), route, ANONYMOUS, context).content(asked)


def grpc_content(request_id: str, data: float) -> tuple[bytes, ...]:
    message = service_pb2.ModelInferRequest(model_name="m", id=request_id, raw_input_contents=[struct.pack("<f", data)])
    message.inputs.add(name="X", shape=[1], datatype="FP32")
    return content_of(message.SerializeToString())


@pytest.mark.parametrize("content", [http_content, grpc_content])
def test_the_id_is_left_out_and_the_rest_is_not(content: Any) -> None:
    assert content("1", 1.0) == content("2", 1.0)
    assert content("1", 1.0) != content("1", 2.0)


def test_what_cannot_be_parsed_is_taken_as_it_is() -> None:
    assert content_of(b"\x00\xff compressed") == (b"\x00\xff compressed",)


def test_a_large_message_is_taken_as_it_is() -> None:
    message = service_pb2.ModelInferRequest(model_name="m", id="1", raw_input_contents=[bytes(MAX_BYTES)])
    message.inputs.add(name="X", shape=[MAX_BYTES], datatype="UINT8")
    assert content_of(message.SerializeToString()) == (exact_content_of(message.SerializeToString()),)


def test_it_is_the_same_over_either_protocol() -> None:
    assert http_content("1", 1.0) == grpc_content("2", 1.0)


def test_a_compressed_message_is_taken_as_it_came_once_its_caller_has_left() -> None:
    message = service_pb2.ModelInferRequest(model_name="m", id="1", raw_input_contents=[bytes(4)])
    message.inputs.add(name="X", shape=[1], datatype="FP32")
    plain = message.SerializeToString()
    packed = gzip.compress(plain)
    context: Any = SimpleNamespace(limits=None, access=None)
    request = GrpcInferRequest(GrpcCall(GrpcHead("/s/m", encoding=b"gzip"), struct.pack(">BI", 1, len(packed)) + packed), context)
    request.inflated = memoryview(plain)
    assert request.content(call("m")) == content_of(plain)
    request.inflated = None
    assert request.content(call("m")) == (packed,)
