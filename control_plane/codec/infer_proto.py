"""Reads and validates a gRPC ModelInferRequest; it goes on to Triton as the bytes it came as.

The same rules as `infer_json`. Protobuf has one reading only, so nothing need be compared between parsers. The
message class is handed in: `codec` knows the fields, the adapter owns the library (`tritonclient.grpc`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from control_plane.codec.bytes_tensor import check_bytes_tensor
from control_plane.codec.infer_json import make_tensor
from control_plane.domain.errors import InvalidRequest
from control_plane.domain.inference import InferCall
from control_plane.domain.tensor import DATATYPE_BYTES, Tensor, element_count


class InferInputTensor(Protocol):
    """Fields of `inference.ModelInferRequest.InferInputTensor`."""

    name: str
    datatype: str
    shape: Sequence[int]
    parameters: dict[str, object]


class ModelInferRequest(Protocol):
    """Fields of `inference.ModelInferRequest` that are checked."""

    model_name: str
    model_version: str
    id: str
    inputs: Sequence[InferInputTensor]
    raw_input_contents: Sequence[bytes]


def check_infer_request(request: ModelInferRequest) -> InferCall:
    """Validate a parsed request.

    Raises:
        InvalidRequest, UnparsableRequest: as `infer_json.read_infer_request`.
    """
    tensors = tuple(make_tensor(entry.name, entry.datatype, list(entry.shape)) for entry in request.inputs)
    if request.raw_input_contents:
        _check_raw_contents(request, tensors)
    return InferCall(request.model_name, request.model_version, request.id, tensors)


def _check_raw_contents(request: ModelInferRequest, tensors: tuple[Tensor, ...]) -> None:
    in_message = [t for t, entry in zip(tensors, request.inputs, strict=True) if "shared_memory_region" not in entry.parameters]
    if len(in_message) != len(request.raw_input_contents):
        raise InvalidRequest(
            f"expected raw_input_contents for {len(in_message)} inputs of model '{request.model_name}', "
            f"got {len(request.raw_input_contents)}"
        )
    for tensor, content in zip(in_message, request.raw_input_contents, strict=True):
        if tensor.datatype == "BYTES":
            check_bytes_tensor(tensor, content, start=0, end=len(content))
        else:
            _check_size(request.model_name, tensor, len(content))


def _check_size(model_name: str, tensor: Tensor, size: int) -> None:
    expected = element_count(tensor.shape) * DATATYPE_BYTES[tensor.datatype]
    if size != expected:
        raise InvalidRequest(
            f"input byte size mismatch for input '{tensor.name}' for model '{model_name}'. Expected {expected}, got {size}"
        )
