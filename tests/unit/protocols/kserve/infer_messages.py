"""Messages of ModelInfer, and what the gateway reads of them."""

from __future__ import annotations

from typing import TypeVar

from tritonclient.grpc import service_pb2

from control_plane.core.algorithms.steps import Steps
from control_plane.core.infer_call import InferCall
from control_plane.protocols.kserve.requests import infer_proto
from control_plane.protocols.kserve.requests.infer_proto import infer_request_steps

ResultT = TypeVar("ResultT")

LARGE = infer_proto._LARGE_BYTES


def read(message: bytes) -> InferCall:
    return finished(infer_request_steps(message, service_pb2.ModelInferRequest.FromString))


def finished(steps: Steps[ResultT]) -> ResultT:
    """Run `infer_request_steps` to its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: ResultT = end.value
            return result


def message(datatype: str = "FP32", shape: tuple[int, ...] = (1,), raw: list[bytes] | None = None) -> service_pb2.ModelInferRequest:
    """A request with one input X and these raw contents."""
    request = service_pb2.ModelInferRequest(model_name="m", model_version="3", id="17", raw_input_contents=raw or [])
    request.inputs.add(name="X", datatype=datatype, shape=shape)
    return request
