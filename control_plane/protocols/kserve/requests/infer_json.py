"""Parser and validator of HTTP inference requests: a JSON header, then the binary tensors that it announces.

The request is forwarded to Triton unchanged. This module makes sure that Triton's parser will see in it
exactly what was checked here (no key twice; no depth or number that only one of the two parsers accepts), and
that nothing in it can harm Triton: broken BYTES framing, shapes whose size overflows or allocates far more
than was sent. Checks against the model's configuration (names, ranks, data types) are left to Triton, whose
own error text then reaches the caller.

Large requests are parsed in steps (`core/algorithms/steps`): BYTES tensors are walked and large JSON is outlined
(`json_outline`).

Source: KServe v2 inference protocol and Triton's binary tensor data extension, measured against server 2.51.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import orjson

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import InvalidRequest, UnparsableRequest
from control_plane.core.infer_call import InferCall
from control_plane.core.tensor import DATATYPE_BYTES, MAX_DIMENSION, MAX_ELEMENTS, MAX_RANK, MAX_TENSORS, Tensor, element_count
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.protocols.kserve.requests.json_elements import check_element_count
from control_plane.protocols.kserve.requests.json_outline import outline_steps
from control_plane.protocols.kserve.requests.reserved_parameters import refuse_reserved
from control_plane.protocols.kserve.tensors.bytes_tensor import bytes_tensor_steps

_BOM = b"\xef\xbb\xbf"
MAX_KEPT_BYTES = 1024
"""Longest JSON header that is cached; with the cache's number of entries this bounds it to a few MB."""

_LARGE_JSON_BYTES = 256 * 1024
"""Larger JSON is outlined first; parsing this much takes 1 to 2 ms."""

_SMALL_JSON_BYTES, _MANY_LISTS = 16 * 1024, 8192
"""JSON above this size is outlined, too, where it has more lists and objects: each costs 0.2 us, so of 256 KiB of empty ones the parser
made 87,000 in 16 ms."""

_MAX_DIGITS = 18
"""Most digits of a length in a header field: longer ones overflow 64 bits somewhere, and Python refuses 4300
and more."""


Body = bytes | bytearray
_DEFAULT_LIMITS = BodyLimits()


def infer_request_steps(
    body: Body, header_length: bytes | None, *, model_name: str, model_version: str, limits: BodyLimits = _DEFAULT_LIMITS
) -> Steps[InferCall]:
    """Validate `body`; `header_length` is the field `Inference-Header-Content-Length`, None where it is
    absent.

    Raises:
        UnparsableRequest: the JSON is invalid, or a field in it is missing or of the wrong type.
        InvalidRequest: the request contradicts itself. PayloadTooLarge: its JSON exceeds `limits`.
    """
    call = small_infer_request(body, header_length, model_name=model_name, model_version=model_version, limits=limits)
    if call is not None:
        return call
    json_bytes = _json_length(body, header_length)
    if json_bytes == 0:
        # Triton's raw binary request: the whole body is the data of the model's only input.
        return InferCall(model_name, model_version, "", (), text_bytes=len(body))
    if _is_bulky(body, json_bytes):
        limits.check_json_bytes(json_bytes)
        fields = yield from json_object_steps(body if json_bytes == len(body) else memoryview(body)[:json_bytes], limits)
        header = _read_header(fields, json_bytes, model_name, model_version, is_outlined=True)
    else:
        header = _small_header(body, json_bytes, model_name, model_version, limits)
    offset = json_bytes
    for tensor, size in zip(header.call.inputs, header.binary_bytes, strict=True):
        if size is not None:
            offset = yield from _binary_steps(tensor, size, body, offset, model_name)
    if offset != len(body):
        raise InvalidRequest(f"unexpected additional input data for model '{model_name}'")
    return header.call


def small_infer_request(
    body: Body, header_length: bytes | None, *, model_name: str, model_version: str, limits: BodyLimits = _DEFAULT_LIMITS
) -> InferCall | None:
    """Validate a request that needs no steps, as nearly all do: its JSON is not bulky, and its binary data has the size
    that its shapes say. None: `infer_request_steps` has to look, which raises as this does.
    """
    json_bytes = _json_length(body, header_length)
    if not json_bytes or _is_bulky(body, json_bytes):
        return None
    if json_bytes > MAX_KEPT_BYTES:
        limits.check_json_bytes(json_bytes)
    header = _small_header(body, json_bytes, model_name, model_version, limits)
    return header.call if header.data_bytes == len(body) - json_bytes else None


def json_object_steps(text: Body | memoryview, limits: BodyLimits) -> Steps[dict[str, Any]]:
    """Parse an object of any size; a large one without its long arrays and strings (`json_outline`).

    Raises:
        UnparsableRequest: as `parse_json_object`.
        PayloadTooLarge: the outline is still large, or there are more elements than `limits`.
    """
    return _expect_object((yield from json_steps(text, limits)))


def json_steps(text: Body | memoryview, limits: BodyLimits) -> Steps[object]:
    """Parse a JSON value of any kind, in steps; the limits and errors are those of `json_object_steps`."""
    whole = text if len(text) > _LARGE_JSON_BYTES else bytes(text)
    if not isinstance(whole, bytes) or _is_bulky(whole, len(whole)):
        return _parse((yield from outline_steps(whole, limits)))
    return _parse_small(whole, limits)


def _is_bulky(body: Body, json_bytes: int) -> bool:
    """Whether the JSON at the beginning of a body is outlined before it is parsed."""
    if json_bytes <= _SMALL_JSON_BYTES:
        return False
    return json_bytes > _LARGE_JSON_BYTES or body.count(b"[", 0, json_bytes) + body.count(b"{", 0, json_bytes) > _MANY_LISTS


def _parse_small(whole: bytes, limits: BodyLimits) -> object:
    # Every element but the first follows a comma, so the commas bound the elements before anything is parsed.
    if len(whole) > limits.max_elements and whole.count(b",") >= limits.max_elements:
        limits.refuse_elements()
    return _parse(whole)


@dataclass(slots=True)
class _Header:
    """The parsed JSON header of a request; never modified, but frozen ones take longer to make."""

    call: InferCall
    binary_bytes: tuple[int | None, ...]
    """For each input its bytes in the binary part; None: its data is in the JSON or in shared memory."""
    data_bytes: int | None
    """Size of the binary part; None where it must be looked into (strings), or contradicts a shape."""


def _small_header(body: Body, json_bytes: int, model_name: str, model_version: str, limits: BodyLimits) -> _Header:
    """Parse the header; a short one that binary data follows is looked up first, since clients repeat such
    headers."""
    text = bytes(body) if json_bytes == len(body) else bytes(body[:json_bytes])
    if json_bytes != len(body) and json_bytes <= MAX_KEPT_BYTES:
        return _read_known_header(text, model_name, model_version)
    return _read_header(_expect_object(_parse_small(text, limits)), json_bytes, model_name, model_version)


@lru_cache(maxsize=2048)
def _read_known_header(text: bytes, model_name: str, model_version: str) -> _Header:
    return _read_header(parse_json_object(text), len(text), model_name, model_version)


def _read_header(fields: dict[str, Any], json_bytes: int, model_name: str, model_version: str, *, is_outlined: bool = False) -> _Header:
    request_id = _required(fields, "id", str, "string") if "id" in fields else ""
    entries, outputs = _required(fields, "inputs", list, "array"), _outputs(fields)
    check_tensor_count(len(entries), len(outputs))
    inputs = [_read_input(entry, json_bytes) for entry in entries]
    uses_shared_memory = any(map(_is_in_shared_memory, entries)) or any(map(_is_in_shared_memory, outputs))
    text_bytes = sum(
        _text_bytes(entry, tensor, size, json_bytes, is_outlined=is_outlined)
        for entry, (tensor, size) in zip(entries, inputs, strict=True)
        if tensor.datatype == "BYTES"
    )
    tensors = tuple(tensor for tensor, _ in inputs)
    call = InferCall(
        model_name,
        model_version,
        request_id,
        tensors,
        uses_shared_memory=uses_shared_memory,
        text_bytes=text_bytes,
        elements=sum(element_count(tensor.shape) for tensor in tensors),
        classified=tuple(name for name in map(_classified, outputs) if name is not None) if outputs else (),
    )
    parameters = fields.get("parameters")
    if type(parameters) is dict:
        refuse_reserved(parameters)
        _note_sequence(call, parameters, is_outlined=is_outlined)
        call.has_priority = "priority" in parameters
        call.concerns_others = call.has_priority or bool(call.sequence_id)
    return _Header(call, tuple(size for _, size in inputs), _data_bytes(inputs))


def _data_bytes(inputs: list[tuple[Tensor, int | None]]) -> int | None:
    binary = [(tensor, size) for tensor, size in inputs if size is not None]
    if any(tensor.datatype == "BYTES" or size != _byte_size(tensor) for tensor, size in binary):
        return None
    return sum(size for _, size in binary)


def _byte_size(tensor: Tensor) -> int:
    return element_count(tensor.shape) * DATATYPE_BYTES[tensor.datatype]


def _note_sequence(call: InferCall, parameters: dict[str, Any], *, is_outlined: bool) -> None:
    found = parameters.get("sequence_id")
    if found:
        call.sequence_id, call.sequence_is_text = str(found), type(found) is str
    elif found == "" and is_outlined:  # the outline has it for a long string, too
        raise InvalidRequest("parameter 'sequence_id' is empty, or longer than an id can be")
    call.starts_sequence, call.ends_sequence = bool(parameters.get("sequence_start")), bool(parameters.get("sequence_end"))


def _text_bytes(entry: dict[str, Any], tensor: Tensor, size: int | None, json_bytes: int, *, is_outlined: bool) -> int:
    """Size of an input's strings, without framing.

    For outlined JSON, and for arrays nested deeper than two levels, it is the upper bound: the size of all the
    JSON.
    """
    if size is not None:
        return max(0, size - 4 * element_count(tensor.shape))
    if "data" not in entry:
        return 0
    data = entry["data"]
    if type(data) is not list or is_outlined:
        return json_bytes
    try:
        return len("".join(data if data and type(data[0]) is str else chain.from_iterable(data)).encode(errors="replace"))
    except TypeError:
        return json_bytes


def parse_json_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object that every parser understands in the same way.

    Raises:
        UnparsableRequest: not JSON, not an object, too deep, or a key occurs twice.
    """
    return _expect_object(_parse(text))


def _parse(text: bytes) -> object:
    """Parse JSON in which no key occurs twice.

    orjson keeps the last of two equal keys and Triton's RapidJSON uses the first, so a repeated key could
    smuggle unchecked content past the frontend. Every key has one colon, so as many colons as parsed keys
    prove that none repeats. More colons (a repeated key, or a colon within a string) are settled by the
    slower parser, which sees each pair.
    """
    try:
        value = orjson.loads(text)
        exact = text.count(b":") == _count_keys(value)
    except (orjson.JSONDecodeError, RecursionError):
        exact = False
    return value if exact else _parse_strictly(text)


def _parse_strictly(text: bytes) -> object:
    try:
        decoded = text.removeprefix(_BOM).decode()
        value = json.loads(decoded, object_pairs_hook=_refuse_repeated_keys)
        if "\\u" in decoded:
            json.dumps(value, ensure_ascii=False).encode()  # fails on half of a surrogate pair, which orjson and Triton refuse
    except (ValueError, RecursionError) as exc:
        raise UnparsableRequest(f"failed to parse the request JSON buffer: {exc}") from exc
    return value


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a key occurs twice among {', '.join(name for name, _ in pairs)}")
    return found


def _count_keys(value: object) -> int:
    """Count the keys of all objects in `value`, without walking tensor data: arrays of scalars are
    skipped."""
    if type(value) is dict:
        count = len(value)
        for inner in value.values():
            kind = type(inner)
            if kind is dict or kind is list:
                count += _count_keys(inner)
        return count
    if type(value) is list and value and type(value[0]) in (dict, list):
        return sum(map(_count_keys, value))
    return 0


def _json_length(body: Body, header_length: bytes | None) -> int:
    if header_length is None:
        return len(body)
    size = int(header_length) if header_length.isdigit() and len(header_length) <= _MAX_DIGITS else -1
    if not 0 <= size <= len(body):
        shown = header_length.decode("latin-1")
        raise InvalidRequest(f"inference header size should be in range (0, {len(body)}), got: {shown}")
    return size


def _read_input(entry: object, json_bytes: int) -> tuple[Tensor, int | None]:
    """The input's tensor, and its bytes in the binary part (None: its data is in the JSON)."""
    if type(entry) is not dict:
        raise UnparsableRequest("Unable to parse 'inputs': every input must be an object with name, shape and datatype")
    name = _required(entry, "name", str, "string")
    datatype = _required(entry, "datatype", str, "string")
    shape = _required(entry, "shape", list, "array")
    tensor = make_tensor(name, datatype, shape)
    size = _binary_size(entry)
    if size is None and "data" in entry:
        check_element_count(tensor, entry["data"], json_bytes)
    return tensor, size


def check_tensor_count(inputs: int, outputs: int) -> None:
    """Check how many inputs a request has, and how many outputs it names. Raises InvalidRequest."""
    if max(inputs, outputs) > MAX_TENSORS:
        raise InvalidRequest(f"the request has {inputs} inputs and names {outputs} outputs; of each there may be {MAX_TENSORS}")


def make_tensor(name: str, datatype: str, shape: Sequence[Any]) -> Tensor:
    """Check a tensor's declaration by itself.

    Raises UnparsableRequest (a dimension's type), InvalidRequest.
    """
    if datatype not in DATATYPE_BYTES:
        raise InvalidRequest(f"invalid datatype for input {name}; known are {', '.join(DATATYPE_BYTES)}")
    if len(shape) > MAX_RANK:
        raise InvalidRequest(f"the shape of input '{name}' has {len(shape)} dimensions, and {MAX_RANK} may be")
    elements = 1
    for dimension in shape:
        if type(dimension) is not int or dimension < 0:
            raise UnparsableRequest(f"Unable to parse 'shape' of input '{name}': {dimension!r} is not an unsigned integer")
        elements *= dimension or 1  # a dimension of 0 must not hide an overflow among the others
        # Checked in the loop: the exact product of a million dimensions would take minutes.
        if elements > MAX_ELEMENTS or dimension > MAX_DIMENSION:
            raise InvalidRequest(f"the shape of input '{name}' has more elements than any request can carry")
    if 0 in shape[1:] and shape[0] == 0:
        raise InvalidRequest(f"the shape of input '{name}' is empty in its first and in another dimension, which Triton never answers")
    return Tensor(name, datatype, tuple(shape))


def _binary_size(entry: dict[str, Any]) -> int | None:
    parameters = entry.get("parameters")
    if parameters is None:
        return None
    if type(parameters) is not dict:
        raise UnparsableRequest("Unable to parse 'parameters': it must be an object")
    if "binary_data_size" not in parameters:
        return None
    size = parameters["binary_data_size"]
    if type(size) is not int or size < 0:
        raise UnparsableRequest(f"Unable to parse 'binary_data_size': {size!r} is not an unsigned integer")
    return size


def _binary_steps(tensor: Tensor, size: int, body: Body, start: int, model_name: str) -> Steps[int]:
    """Check the `size` bytes from `start` that belong to `tensor`; returns their end."""
    end = start + size
    if end > len(body):
        missing = end - len(body)
        raise InvalidRequest(f"unexpected size for input '{tensor.name}', expecting {missing} additional bytes for model '{model_name}'")
    if tensor.datatype == "BYTES":
        yield from bytes_tensor_steps(tensor, body, start=start, end=end)
        return end
    expected = _byte_size(tensor)
    if size != expected:
        raise InvalidRequest(
            f"input byte size mismatch for input '{tensor.name}' for model '{model_name}'. Expected {expected}, got {size}"
        )
    return end


def _outputs(fields: dict[str, Any]) -> list[Any]:
    outputs = fields.get("outputs")
    return outputs if type(outputs) is list else []  # Triton itself refuses anything but an array


def _classified(entry: object) -> str | None:
    """The name of an output whose classes are asked for."""
    parameters = entry.get("parameters") if type(entry) is dict else None
    asks = type(parameters) is dict and bool(parameters.get("classification"))
    return str(entry.get("name")) if asks and type(entry) is dict else None


def _is_in_shared_memory(entry: object) -> bool:
    parameters = entry.get("parameters") if type(entry) is dict else None
    return type(parameters) is dict and "shared_memory_region" in parameters


def _required(fields: dict[str, Any], name: str, kind: type, kind_name: str) -> Any:
    if name not in fields:
        raise UnparsableRequest(f"Unable to parse '{name}': attempt to access non-existing object member '{name}'")
    if type(fields[name]) is not kind:
        raise UnparsableRequest(f"Unable to parse '{name}': attempt to access JSON non-{kind_name} as {kind_name}")
    return fields[name]


def _expect_object(value: object) -> dict[str, Any]:
    if type(value) is not dict:
        raise UnparsableRequest("attempt to get members for non-object: the request must be a JSON object")
    return value
