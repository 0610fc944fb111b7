"""Codec of ModelInferRequests that the gateway answers itself, and of those that it sends to the parts of a sharded model.

The data of tensors is not copied when it is read. Source: grpc_service.proto (KServe v2). Requests of callers have been
validated by `infer_proto`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from control_plane.core.errors import InvalidRequest, PayloadTooLarge, UpstreamFailed
from control_plane.core.tensor import RawTensor, Tensor, element_count
from control_plane.protocols.kserve.ensemble_json import MAX_JSON_BYTES, GivenTensors
from control_plane.protocols.kserve.messages import service_pb2
from control_plane.protocols.kserve.requests.message_outline import RAW_INPUT_CONTENTS
from control_plane.protocols.kserve.tensors.bytes_tensor import encode_bytes_elements
from control_plane.protocols.kserve.tensors.infer_answer import CONTENTS
from control_plane.protocols.kserve.tensors.raw_data import packed
from control_plane.protocols.protobuf_fields import fields, varint

RAW_OUTPUT_CONTENTS = 6 << 3 | 2
"""Tag of this field in a ModelInferResponse."""
_MAX_FIELDS = 4096
"""Most fields of a message, as all are walked at once, at a microsecond each."""
_OF_SEQUENCES = frozenset(("sequence_id", "sequence_start", "sequence_end"))


def read_given(message: bytes | memoryview) -> GivenTensors:
    """Read a validated ModelInferRequest. Raises InvalidRequest; PayloadTooLarge: much is not in `raw_input_contents`."""
    rest, contents = _split(message, RAW_INPUT_CONTENTS)
    if len(rest) > MAX_JSON_BYTES:
        raise PayloadTooLarge(f"a sharded model takes at most {MAX_JSON_BYTES} bytes beside raw_input_contents, got {len(rest)}")
    request = service_pb2.ModelInferRequest.FromString(rest)
    raw, inputs = iter(contents), dict[str, RawTensor]()
    for entry in request.inputs:
        tensor = Tensor(entry.name, entry.datatype, tuple(entry.shape))
        if tensor.name in inputs:
            raise InvalidRequest(f"[request id: {request.id or '<id_unknown>'}] input '{tensor.name}' already exists in request")
        inputs[tensor.name] = RawTensor(tensor, next(raw) if contents else _written_out(entry))
    parameters = {name: _value(each) for name, each in request.parameters.items() if name not in _OF_SEQUENCES}
    return GivenTensors(inputs, tuple(output.name for output in request.outputs), parameters, {})


def part_request(
    model: str, version: str, inputs: Mapping[str, RawTensor], outputs: Sequence[str], parameters: Mapping[str, Any]
) -> list[bytes | memoryview]:
    """The ModelInferRequest to a part, in pieces."""
    request = service_pb2.ModelInferRequest(model_name=model, model_version=version)
    pieces: list[bytes | memoryview] = []
    for name, raw in inputs.items():
        request.inputs.add(name=name, datatype=raw.tensor.datatype, shape=raw.tensor.shape)
        pieces += (varint(RAW_INPUT_CONTENTS), varint(len(raw.data)), raw.data)
    for output in outputs:
        request.outputs.add(name=output)
    for name, value in parameters.items():
        _set(request.parameters[name], value)
    return [request.SerializeToString(), *pieces]


def part_outputs(message: bytes | memoryview) -> dict[str, RawTensor]:
    """The outputs in a part's ModelInferResponse. Raises UpstreamFailed."""
    try:
        rest, contents = _split(message, RAW_OUTPUT_CONTENTS)
        answer = service_pb2.ModelInferResponse.FromString(rest)
        outputs = zip(answer.outputs, contents, strict=True)
        return {each.name: RawTensor(Tensor(each.name, each.datatype, tuple(each.shape)), data) for each, data in outputs}
    except (DecodeError, InvalidRequest, ValueError) as exc:
        raise UpstreamFailed("Triton's answer cannot be read") from exc


def render_answer(model: str, version: str, request_id: str, outputs: Sequence[tuple[str, RawTensor]]) -> list[bytes | memoryview]:
    """The ModelInferResponse with these outputs, by their names in the whole model, in pieces."""
    answer = service_pb2.ModelInferResponse(model_name=model, model_version=version, id=request_id)
    answer.parameters["sequence_id"].int64_param = 0
    answer.parameters["sequence_start"].bool_param = False
    answer.parameters["sequence_end"].bool_param = False
    pieces: list[bytes | memoryview] = []
    for name, raw in outputs:
        answer.outputs.add(name=name, datatype=raw.tensor.datatype, shape=raw.tensor.shape)
        pieces += (varint(RAW_OUTPUT_CONTENTS), varint(len(raw.data)), raw.data)
    return [answer.SerializeToString(), *pieces]


def _split(message: bytes | memoryview, tag: int) -> tuple[bytes, list[memoryview]]:
    """The message without the fields of this tag, and these."""
    rest, found = list[memoryview](), list[memoryview]()
    for number, (each, field, payload) in enumerate(fields(memoryview(message))):
        if number == _MAX_FIELDS:
            raise PayloadTooLarge(f"the message has more than {_MAX_FIELDS} fields, which is too many for a sharded model")
        if each == tag:
            found.append(payload)
        else:
            rest.append(field)
    return b"".join(rest), found


def _written_out(entry: Any) -> bytes:
    """The bytes of an input whose elements are written out one by one."""
    if entry.datatype not in CONTENTS:
        raise InvalidRequest(f"data of type {entry.datatype} has to be in raw_input_contents")
    elements = list(getattr(entry.contents, CONTENTS[entry.datatype]))
    found = encode_bytes_elements(elements) if entry.datatype == "BYTES" else packed(entry.name, entry.datatype, elements)
    wanted = element_count(tuple(entry.shape))
    if len(elements) != wanted:
        raise InvalidRequest(f"input '{entry.name}' has {len(elements)} elements, and its shape has {wanted}")
    return found


def _value(parameter: Any) -> Any:
    return getattr(parameter, parameter.WhichOneof("parameter_choice") or "string_param")


def _set(parameter: Any, value: Any) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        parameter.int64_param = value
    elif isinstance(value, int) and 0 <= value < 2**64:
        parameter.uint64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = str(value)
