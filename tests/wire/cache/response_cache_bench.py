"""Answers that Triton gives once, and what a frontend then says of its cache."""

from __future__ import annotations

import json
from typing import Any

from tritonclient.grpc import service_pb2

from control_plane.protocols.grpc import GrpcAnswer, message_answer
from control_plane.triton.ports import GrpcCall
from tests.wire.gateway import Answer


def status_of(answer: Answer) -> str:
    lines = [line for line in answer.head.split(b"\r\n") if line.lower().startswith(b"tidegate-cache:")]
    return lines[0].partition(b": ")[2].decode() if lines else ""


def body(value: float = 1.0, **more: Any) -> bytes:
    return json.dumps({**more, "inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [value]}]}).encode()


def as_triton_over_grpc(call: GrpcCall) -> GrpcAnswer:
    asked = service_pb2.ModelInferRequest.FromString(bytes(call.frame[5:]))
    answer = service_pb2.ModelInferResponse(model_name="m", model_version="1", id=asked.id, raw_output_contents=asked.raw_input_contents)
    return message_answer(answer.SerializeToString())
