"""Requests and stand-in answers of both protocols say the same as NVIDIA's client and Triton would."""

from __future__ import annotations

import json

import numpy as np
from tritonclient.grpc import service_pb2

from perf.load.echo_requests import Echo, HttpMessage

ECHO = Echo(16)
TENSOR = np.arange(4, dtype=np.float32).tobytes()


def split(message: HttpMessage) -> tuple[dict[str, object], bytes]:
    return json.loads(message.body[: message.header_length]), message.body[message.header_length :]


def test_http_request_carries_the_tensor() -> None:
    message = ECHO.http_request()
    head, tensor = split(message)
    assert tensor == TENSOR
    assert head["inputs"] == [{"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}]


def test_http_answer_returns_the_tensor() -> None:
    head, tensor = split(ECHO.http_answer())
    assert tensor == TENSOR
    assert head["outputs"] == [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}]


def test_grpc_request_carries_the_tensor() -> None:
    data = ECHO.grpc_request()
    assert data[:5] == b"\0" + (len(data) - 5).to_bytes(4, "big")
    message = service_pb2.ModelInferRequest.FromString(data[5:])
    assert list(message.raw_input_contents) == [TENSOR]
    (given,) = message.inputs
    assert (message.model_name, given.name, given.datatype, list(given.shape)) == ("echo", "INPUT0", "FP32", [1, 4])


def test_grpc_answer_returns_the_tensor() -> None:
    message = service_pb2.ModelInferResponse.FromString(ECHO.grpc_answer()[5:])
    assert (list(message.outputs[0].shape), message.raw_output_contents[0]) == ([1, 4], TENSOR)
