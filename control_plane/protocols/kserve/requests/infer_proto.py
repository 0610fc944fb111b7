"""Validator of gRPC ModelInferRequests, which are forwarded to Triton as the bytes they arrived as.

The rules are those of `infer_json`. All parsers understand a protobuf message in the same way, so nothing has
to be proved about Triton's parser. The parser is handed in: this module knows the fields, the frontend owns
the library (`tritonclient.grpc`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.algorithms.steps import Steps, finish
from control_plane.core.errors import InvalidRequest, PayloadTooLarge
from control_plane.core.infer_call import InferCall
from control_plane.core.model import check_reference
from control_plane.core.tensor import DATATYPE_BYTES, Tensor, element_count
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.protocols.kserve.requests.infer_json import check_tensor_count, make_tensor
from control_plane.protocols.kserve.requests.message_outline import RAW_INPUT_CONTENTS, outline_steps
from control_plane.protocols.kserve.requests.reserved_parameters import refuse_reserved
from control_plane.protocols.kserve.tensors.bytes_tensor import bytes_tensor_steps
from control_plane.protocols.protobuf_fields import fields

_LARGE_BYTES = 64 * 1024
"""Larger messages are parsed without their tensors' data, which the parser would copy while the event loop
waits."""

_SMALL_BYTES = 16 * 1024
"""Messages up to this size are checked at once; of strings without a character it takes a millisecond."""

_MAX_OUTLINE_BYTES = 2**20
"""Largest size of a request without its tensors' data, that is of names, shapes and parameters."""

_MAX_KNOWN_BYTES = 1024
"""Longest message without its tensor's data that is remembered."""
_CALL_BYTES = 1000
"""Memory of what is known of a message, about."""
_KNOWN = BoundedCache[tuple[int, bytes], tuple[bytes, InferCall]]()
"""Messages that were checked, without the data at their end, by size and first field, the model's name. Clients repeat
such a message with other data, and parsing it anew finds nothing else."""


class Parameterised(Protocol):
    """The checked fields of `inference.ModelInferRequest.InferRequestedOutputTensor`."""

    name: str
    parameters: Mapping[str, Any]


class InferTensorContents(Protocol):
    """The fields of `inference.InferTensorContents` whose elements are added up."""

    bytes_contents: Sequence[bytes]


class InferInputTensor(Parameterised, Protocol):
    """The checked fields of `inference.ModelInferRequest.InferInputTensor`."""

    datatype: str
    shape: Sequence[int]
    contents: InferTensorContents


class ModelInferRequest(Protocol):
    """The checked fields of `inference.ModelInferRequest`."""

    model_name: str
    model_version: str
    id: str
    parameters: Mapping[str, Any]
    inputs: Sequence[InferInputTensor]
    outputs: Sequence[Parameterised]
    raw_input_contents: Sequence[bytes]


Contents = Sequence[bytes | memoryview]
_DEFAULT_LIMITS = BodyLimits()


def infer_request_steps(
    message: bytes | memoryview, parse: Callable[[bytes], ModelInferRequest], limits: BodyLimits = _DEFAULT_LIMITS
) -> Steps[InferCall]:
    """Validate a serialised ModelInferRequest, in steps.

    Raises:
        InvalidRequest, UnparsableRequest, PayloadTooLarge: as `infer_json.infer_request_steps`.
    """
    call = small_infer_request(message, parse)
    if call is not None:
        return call
    if len(message) <= _LARGE_BYTES:
        request = _parse(bytes(message), parse)
        return (yield from _check_steps(request, request.raw_input_contents, len(message)))
    outline, contents = yield from outline_steps(memoryview(message), limits)
    if len(outline) > _MAX_OUTLINE_BYTES:
        raise PayloadTooLarge(f"a request of {len(outline)} bytes without its tensors' data; at most {_MAX_OUTLINE_BYTES} may be")
    return (yield from _check_steps(_parse(outline, parse), contents, len(message)))


def small_infer_request(message: bytes | memoryview, parse: Callable[[bytes], ModelInferRequest]) -> InferCall | None:
    """Validate a message that is small enough to need no steps, as most are; None: `infer_request_steps` has to.

    Raises:
        InvalidRequest, UnparsableRequest: as `infer_request_steps`.
    """
    size = len(message)
    if size > _SMALL_BYTES:
        return None
    text = bytes(message)
    key = (size, text[: 2 + text[1]] if size > 1 else b"")  # a name of at most 127 bytes, after its tag and length
    known = _KNOWN.get(key)
    if known is not None and text.startswith(known[0]):
        return known[1]
    request = _parse(text, parse)
    contents = request.raw_input_contents
    tensors, in_message = _tensors(request)
    if contents:
        _check_count(request, in_message, contents)
        for tensor, content in zip(in_message, contents, strict=True):
            if tensor.datatype == "BYTES":
                finish(bytes_tensor_steps(tensor, content, start=0, end=len(content)))
            else:
                _check_size(request.model_name, tensor, len(content))
    call = _call(request, tensors, in_message, contents, size)
    # An id is another one in each message; and strings have to be looked through each time.
    if len(contents) == 1 and not call.request_id and in_message[0].datatype != "BYTES":
        _remember(key, text, len(contents[0]), call)
    return call


def _remember(key: tuple[int, bytes], text: bytes, data_bytes: int, call: InferCall) -> None:
    """Remember a checked message, if the data of its only tensor is its last field: then another one of that size which
    begins with the same bytes, the data's tag and length included, differs in nothing else."""
    head_bytes = len(text) - data_bytes
    if head_bytes > _MAX_KNOWN_BYTES or key in _KNOWN.keys:
        return
    try:
        *_, (tag, _, payload) = fields(memoryview(text))
    except InvalidRequest:  # an old kind of field that protobuf's parser skips
        return
    # Any other last field could hold these bytes within it, such as a second model name, which overrides the first.
    if tag == RAW_INPUT_CONTENTS and len(payload) == data_bytes:
        _KNOWN.keep(key, (text[:head_bytes], call), size_bytes=2 * head_bytes + _CALL_BYTES)


def _parse(message: bytes, parse: Callable[[bytes], ModelInferRequest]) -> ModelInferRequest:
    try:
        return parse(message)
    except Exception as exc:  # protobuf's DecodeError differs between its implementations
        raise InvalidRequest(f"not a ModelInferRequest: {exc}") from exc


def _check_steps(request: ModelInferRequest, contents: Contents, message_bytes: int) -> Steps[InferCall]:
    tensors, in_message = _tensors(request)
    if contents:
        _check_count(request, in_message, contents)
        for tensor, content in zip(in_message, contents, strict=True):
            if tensor.datatype == "BYTES":
                yield from bytes_tensor_steps(tensor, content, start=0, end=len(content))
            else:
                _check_size(request.model_name, tensor, len(content))
    return _call(request, tensors, in_message, contents, message_bytes)


def _tensors(request: ModelInferRequest) -> tuple[list[Tensor], list[Tensor]]:
    """The inputs, checked by themselves, and those of them whose data is in the message."""
    check_reference(request.model_name, request.model_version)
    check_tensor_count(len(request.inputs), len(request.outputs))
    tensors, in_message = [], []
    for entry in request.inputs:
        tensor = make_tensor(entry.name, entry.datatype, entry.shape)
        tensors.append(tensor)
        if "shared_memory_region" not in entry.parameters:
            in_message.append(tensor)
    return tensors, in_message


def _check_count(request: ModelInferRequest, in_message: list[Tensor], contents: Contents) -> None:
    if len(in_message) != len(contents):
        raise InvalidRequest(
            f"expected raw_input_contents for {len(in_message)} inputs of model '{request.model_name}', got {len(contents)}"
        )


def _call(request: ModelInferRequest, tensors: list[Tensor], in_message: list[Tensor], contents: Contents, message_bytes: int) -> InferCall:
    uses_shared_memory = len(in_message) < len(tensors) or (bool(request.outputs) and _any_in_shared_memory(request.outputs))
    sequence_id = ""
    if request.parameters:
        refuse_reserved(request.parameters)
        sequence_id = _sequence_id(request.parameters)
    elements, has_strings = 0, False
    for tensor in tensors:
        elements += element_count(tensor.shape)
        has_strings = has_strings or tensor.datatype == "BYTES"
    text_bytes = _text_bytes(request, in_message, contents, message_bytes) if has_strings else 0
    name, version = request.model_name, request.model_version
    call = InferCall(name, version, request.id, tuple(tensors), sequence_id, uses_shared_memory, text_bytes, elements)
    if sequence_id:
        call.sequence_is_text = bool(request.parameters["sequence_id"].string_param)
        call.starts_sequence = request.parameters["sequence_start"].bool_param
        call.ends_sequence = request.parameters["sequence_end"].bool_param
    if request.parameters:
        call.has_priority = "priority" in request.parameters
        call.concerns_others = call.has_priority or bool(sequence_id)
    if request.outputs:
        call.classified = tuple(entry.name for entry in request.outputs if _is_classified(entry))
    return call


def _text_bytes(request: ModelInferRequest, in_message: list[Tensor], contents: Contents, message_bytes: int) -> int:
    """Size of the strings in a checked request; for strings in the `contents` of a large message, an upper
    bound."""
    if contents:
        raw = zip(in_message, contents, strict=True)
        return sum(len(content) - 4 * element_count(tensor.shape) for tensor, content in raw if tensor.datatype == "BYTES")
    if message_bytes > _LARGE_BYTES:
        return message_bytes
    return sum(len(text) for entry in request.inputs for text in entry.contents.bytes_contents)


def _sequence_id(parameters: Mapping[str, Any]) -> str:
    if "sequence_id" not in parameters:
        return ""
    value = parameters["sequence_id"]
    return str(value.string_param or value.int64_param or value.uint64_param or "")


def _is_classified(entry: Parameterised) -> bool:
    return "classification" in entry.parameters and entry.parameters["classification"].int64_param != 0


def _any_in_shared_memory(entries: Iterable[Parameterised]) -> bool:
    return any("shared_memory_region" in entry.parameters for entry in entries)


def _check_size(model_name: str, tensor: Tensor, size: int) -> None:
    expected = element_count(tensor.shape) * DATATYPE_BYTES[tensor.datatype]
    if size != expected:
        raise InvalidRequest(
            f"input byte size mismatch for input '{tensor.name}' for model '{model_name}'. Expected {expected}, got {size}"
        )
