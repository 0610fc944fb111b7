"""Decodes the output tensors of inference answers, of HTTP and of gRPC, for whoever compares models.

Answers on their way to callers are never decoded: they stay Triton's bytes. Sources: KServe v2 inference protocol, and
its binary tensor data extension. Called by the frontends' copies of requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import error, unpack_from
from typing import Any

import numpy as np
import orjson
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from control_plane.core.errors import InvalidRequest
from control_plane.protocols.kserve.messages import service_pb2

_TYPES: Mapping[str, str] = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2", "INT32": "<i4",
    "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "BYTES": "O",
}  # fmt: skip
"""NumPy's data types; BF16 has none."""
CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip

Tensors = dict[str, NDArray[Any]]


def json_outputs(body: bytes | memoryview, json_bytes: int | None) -> Tensors:
    """Decode the body of an HTTP answer, whose JSON has `json_bytes` where binary data follows. Raises InvalidRequest."""
    try:
        said = orjson.loads(body if json_bytes is None else body[:json_bytes])
        at, found = len(body) if json_bytes is None else json_bytes, Tensors()
        for output in said["outputs"]:
            size = (output.get("parameters") or {}).get("binary_data_size")
            if size is None:
                data = [each.encode() for each in output["data"]] if output["datatype"] == "BYTES" else output["data"]
                found[output["name"]] = _of_elements(data, output["datatype"], output["shape"])
            else:
                found[output["name"]] = _of_bytes(bytes(body[at : at + size]), output["datatype"], output["shape"])
                at += size
        return found
    except (ValueError, KeyError, TypeError, AttributeError, error, OverflowError) as exc:
        raise InvalidRequest(f"the answer's tensors cannot be read: {exc}") from exc


def proto_outputs(message: bytes | memoryview) -> Tensors:
    """Decode a ModelInferResponse. Raises InvalidRequest."""
    try:
        answer = service_pb2.ModelInferResponse.FromString(bytes(message))
        raw: Iterator[bytes] = iter(answer.raw_output_contents)
        found = Tensors()
        for output in answer.outputs:
            if answer.raw_output_contents:
                found[output.name] = _of_bytes(next(raw), output.datatype, output.shape)
            else:
                found[output.name] = _of_elements(list(getattr(output.contents, CONTENTS[output.datatype])), output.datatype, output.shape)
        return found
    except (DecodeError, ValueError, KeyError, TypeError, error, StopIteration) as exc:
        raise InvalidRequest(f"the answer's tensors cannot be read: {exc}") from exc


def _of_bytes(data: bytes, datatype: str, shape: Sequence[int]) -> NDArray[Any]:
    if datatype == "BYTES":
        return _of_elements(list(_elements(data)), datatype, shape)
    return np.frombuffer(data, _TYPES[datatype]).reshape(tuple(shape))


def _of_elements(data: Any, datatype: str, shape: Sequence[int]) -> NDArray[Any]:
    if datatype != "BYTES":
        return np.array(data, _TYPES[datatype]).reshape(tuple(shape))
    held = np.empty(len(data), object)
    held[:] = data
    return held.reshape(tuple(shape))


def _elements(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (size,) = unpack_from("<I", data, at)
        if at + 4 + size > len(data):
            raise ValueError("an element is cut off")
        yield data[at + 4 : at + 4 + size]
        at += 4 + size
