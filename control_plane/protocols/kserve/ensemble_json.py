"""Codec of an HTTP inference request that the gateway answers itself, from its parts' tensors: to raw tensors and back.

The request has been validated by `infer_json`. Source: KServe v2 and Triton's binary tensor data extension; the answer has
Triton's form to the byte (measured against server 2.51), where an ensemble repeats the parameters of sequences for each
output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from control_plane.core.errors import InvalidRequest, NotSupported, PayloadTooLarge
from control_plane.core.tensor import RawTensor, Tensor, element_count
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.protocols.kserve.requests.infer_json import parse_json_object
from control_plane.protocols.kserve.tensors.raw_data import elements_of_raw, raw_of_elements

MAX_JSON_BYTES = 256 * 1024
"""Largest JSON that is read here: more takes milliseconds, in which nothing else is done."""
MAX_JSON_ELEMENTS = 2**16
"""Most elements that are written as JSON, for the same reason."""
_OF_SEQUENCE = b'"sequence_id":0,"sequence_start":false,"sequence_end":false'
_OWN = frozenset(("binary_data_output", "sequence_id", "sequence_start", "sequence_end"))


@dataclass(frozen=True, slots=True)
class GivenTensors:
    """Request for a sharded model: its inputs as raw tensors, and what it asks for."""

    inputs: Mapping[str, RawTensor]
    outputs: tuple[str, ...]
    """Empty: all."""
    parameters: Mapping[str, Any]
    """Parameters that its parts get, too."""
    binary: Mapping[str, bool]
    """For each output that it names, whether it is wanted as binary data; "" for all where it names none."""

    def is_binary(self, output: str) -> bool:
        return self.binary.get(output if self.outputs else "", False)


def read_given(body: bytes | bytearray, json_bytes: int) -> GivenTensors:
    """Read a validated request, whose JSON has so many bytes. Raises InvalidRequest, NotSupported, PayloadTooLarge."""
    if not json_bytes:
        raise NotSupported("a sharded model takes no raw binary request: name its inputs in JSON")
    if json_bytes > MAX_JSON_BYTES:
        raise PayloadTooLarge(
            f"a sharded model takes at most {MAX_JSON_BYTES} bytes of JSON, got {json_bytes}: send the tensors as binary data"
        )
    said, at = parse_json_object(bytes(body[:json_bytes])), json_bytes
    inputs = dict[str, RawTensor]()
    for entry in said["inputs"]:
        tensor = Tensor(entry["name"], entry["datatype"], tuple(entry["shape"]))
        if tensor.name in inputs:
            raise InvalidRequest(f"[request id: {said.get('id') or '<id_unknown>'}] input '{tensor.name}' already exists in request")
        size = (entry.get("parameters") or {}).get("binary_data_size")
        data = memoryview(body)[at : at + size] if size is not None else raw_of_elements(*_elements(entry))
        at += size or 0
        inputs[tensor.name] = RawTensor(tensor, data)
    parameters = _parameters(said)
    outputs = _outputs(said)
    binary = {name: bool(own.get("binary_data")) for name, own in outputs.items()}
    forwarded = {name: value for name, value in parameters.items() if name not in _OWN}
    return GivenTensors(inputs, tuple(outputs), forwarded, binary or {"": bool(parameters.get("binary_data_output"))})


def _elements(entry: Mapping[str, Any]) -> tuple[str, str, list[Any]]:
    data = entry.get("data")
    if type(data) is not list:
        raise InvalidRequest(f"Unable to parse 'data' of input '{entry['name']}': it must be an array")
    return entry["name"], entry["datatype"], data


def _outputs(said: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    outputs = said.get("outputs") or []
    if type(outputs) is not list or not all(type(each) is dict and type(each.get("name")) is str for each in outputs):
        raise InvalidRequest("Unable to parse 'outputs': it must be an array of objects with names")
    return {each["name"]: _parameters(each) for each in outputs}


def _parameters(said: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = said.get("parameters") or {}
    if type(parameters) is not dict or any(type(each) not in (str, bool, int, float) for each in parameters.values()):
        raise InvalidRequest("Unable to parse 'parameters': it must be an object of strings, numbers and booleans")
    return parameters


def render_answer(model: str, version: str, request_id: str, given: GivenTensors, outputs: Sequence[tuple[str, RawTensor]]) -> HttpAnswer:
    """The answer with these outputs, by their names in the whole model. Raises InvalidRequest: one has no form in JSON."""
    binary = [raw.data for name, raw in outputs if given.is_binary(name)]
    lines = [_output(name, raw, is_binary=given.is_binary(name)) for name, raw in outputs]
    told = b'"model_name":%b,"model_version":%b' % (orjson.dumps(model), orjson.dumps(version))
    if request_id:
        told = b'"id":%b,%b' % (orjson.dumps(request_id), told)
    parameters = b",".join([_OF_SEQUENCE] * len(outputs))
    json = b'{%b,"parameters":{%b},"outputs":[%b]}' % (told, parameters, b",".join(lines))
    if not any(map(len, binary)):
        return make_answer(200, json)
    length = [(b"Inference-Header-Content-Length", b"%d" % len(json))]
    return make_answer(200, b"".join((json, *binary)), content_type=b"application/octet-stream", headers=length)


def _output(name: str, raw: RawTensor, *, is_binary: bool) -> bytes:
    tensor = raw.tensor
    head = b'{"name":%b,"datatype":"%b","shape":%b' % (orjson.dumps(name), tensor.datatype.encode(), orjson.dumps(tensor.shape))
    if is_binary:
        return b'%b,"parameters":{"binary_data_size":%d}}' % (head, len(raw.data))
    if element_count(tensor.shape) > MAX_JSON_ELEMENTS:
        raise PayloadTooLarge(f"output '{name}' has more than {MAX_JSON_ELEMENTS} elements: ask for binary data (parameter 'binary_data')")
    return b'%b,"data":%b}' % (head, elements_of_raw(raw))
