"""Canonical form of a request's inputs, equal over HTTP with JSON, HTTP with binary data and gRPC: names, types, shapes,
and the tensors' bytes as Triton gives them to the model.

A request under which processes die is known by it, whichever way it comes again (`inference/retries/queries_of_death`). Which
outputs are asked for is left out: the model computes the same. Called by the KServe frontends, of requests that have
been checked.

Source: KServe v2 inference protocol (JSON, `grpc_service.proto`) and Triton's binary tensor data extension.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import orjson

from control_plane.protocols.kserve.tensors.bytes_tensor import encode_bytes_elements

MAX_BYTES = 2**18
"""Largest request that is brought into this form: with all data in its JSON that takes some milliseconds, in which
nobody else is served."""

_TYPECODES = {
    "BOOL": "B", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP32": "f", "FP64": "d",
}  # fmt: skip
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
_OF_TRANSPORT = frozenset(("binary_data_size", "binary_data_output", "binary_data"))
"""Parameters that say how tensors travel."""
_SHARED_MEMORY = "shared_memory_region"


class _Message(Protocol):
    """The fields of `inference.ModelInferRequest` that are read."""

    inputs: Sequence[Any]
    parameters: Mapping[str, Any]
    raw_input_contents: Sequence[bytes]


def inputs_of_body(json: bytes, binary: bytes | memoryview) -> tuple[bytes, ...] | None:
    """The inputs of a request over HTTP, given without its binary data and that; None where they are too large or not
    of this kind."""
    if len(json) + len(binary) > MAX_BYTES:
        return None
    try:
        request, at, found = orjson.loads(json), 0, []
        for entry in request["inputs"]:
            parameters = entry.get("parameters", {})
            size = parameters.get("binary_data_size")
            if _SHARED_MEMORY in parameters:
                return None
            datatype = entry["datatype"]
            data = _encoded(datatype, _flat(entry["data"])) if size is None else bytes(binary[at : at + size])
            at += size or 0
            found.append((_head(entry["name"], datatype, entry["shape"], parameters), data))
        return _canonical(request.get("parameters", {}), found)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def inputs_of_message(request: _Message) -> tuple[bytes, ...] | None:
    """The inputs of a ModelInferRequest of at most `MAX_BYTES`; None where they are not of this kind."""
    raw, found = iter(request.raw_input_contents), []
    try:
        for tensor in request.inputs:
            parameters = _plain(tensor.parameters)
            if _SHARED_MEMORY in parameters:
                return None
            if request.raw_input_contents:
                data = next(raw, b"")
            else:
                data = _encoded(tensor.datatype, getattr(tensor.contents, _CONTENTS[tensor.datatype]))
            found.append((_head(tensor.name, tensor.datatype, list(tensor.shape), parameters), data))
        return _canonical(_plain(request.parameters), found)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _canonical(parameters: Mapping[str, object], inputs: list[tuple[bytes, bytes]]) -> tuple[bytes, ...]:
    """The order in which inputs are named says nothing."""
    kept = {name: value for name, value in parameters.items() if name not in _OF_TRANSPORT}
    return (orjson.dumps(kept, option=orjson.OPT_SORT_KEYS), *chain.from_iterable(sorted(inputs)))


def _head(name: str, datatype: str, shape: list[int], parameters: Mapping[str, object]) -> bytes:
    kept = {key: value for key, value in parameters.items() if key not in _OF_TRANSPORT}
    return orjson.dumps([name, datatype, shape, kept], option=orjson.OPT_SORT_KEYS)


def _plain(parameters: Mapping[str, Any]) -> dict[str, object]:
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in parameters.items()}


def _flat(data: Any) -> Sequence[Any]:
    """The elements of nested lists, in row-major order."""
    while data and isinstance(data[0], list):
        data = list(chain.from_iterable(data))
    return data if isinstance(data, list) else [data]


def _encoded(datatype: str, elements: Iterable[Any]) -> bytes:
    """Elements as bytes, little-endian."""
    if datatype == "BYTES":
        return encode_bytes_elements([each.encode() if isinstance(each, str) else bytes(memoryview(each)) for each in elements])
    encoded = array(_TYPECODES[datatype], elements)
    if sys.byteorder == "big":
        encoded.byteswap()
    return encoded.tobytes()
