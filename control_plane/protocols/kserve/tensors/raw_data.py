"""Conversion of tensors' data between JSON, as Triton reads and writes it, and raw bytes.

For answers that the gateway makes itself (`ensemble_json`). Source: KServe v2, and Triton's JSON by RapidJSON, whose numbers
are those of `Prettify` (measured against server 2.51).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import error, pack, unpack_from
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from control_plane.core.errors import InvalidRequest
from control_plane.core.tensor import RawTensor
from control_plane.protocols.kserve.tensors.bytes_tensor import encode_bytes_elements

_PACKED = {
    "BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP32": "f", "FP64": "d",
}  # fmt: skip
"""Formats of `struct`, which NumPy has, too; JSON has no other types of numbers."""
_FLOATS = frozenset(("FP32", "FP64"))
_RIGHT = {
    name: frozenset((bool,)) if name == "BOOL" else frozenset((int, float)) if name in _FLOATS else frozenset((int,)) for name in _PACKED
} | {"BYTES": frozenset((str,))}
"""Types of the elements in JSON."""
_POSITIONAL_FROM, _POSITIONAL_TO = 1e16, 1e21
"""Numbers that RapidJSON writes out and orjson with an exponent."""


def raw_of_elements(name: str, datatype: str, elements: list[Any]) -> bytes:
    """The bytes of a tensor whose data is in JSON, flat or in nested arrays. Raises InvalidRequest."""
    flat = list(_flat(elements))
    kinds = {*map(type, flat)}
    if datatype == "BYTES" and kinds <= {str}:
        return encode_bytes_elements([each.encode() for each in flat])
    if datatype not in _RIGHT:
        raise InvalidRequest(f"Unable to parse 'data' of input '{name}': data of type {datatype} has to be sent as binary data")
    if not kinds <= _RIGHT[datatype]:
        raise InvalidRequest(f"Unable to parse 'data' of input '{name}': not all are of {datatype}")
    return packed(name, datatype, flat)


def packed(name: str, datatype: str, numbers: Sequence[Any]) -> bytes:
    """The bytes of an input's numbers. Raises InvalidRequest: one is beyond the type."""
    try:
        return pack(f"<{len(numbers)}{_PACKED[datatype]}", *numbers)
    except (error, OverflowError) as exc:
        raise InvalidRequest(f"input '{name}' has a number beyond {datatype}") from exc


def elements_of_raw(raw: RawTensor) -> bytes:
    """The JSON array of a tensor's data, flat, as Triton writes it. Raises InvalidRequest: the type has no form in JSON."""
    datatype = raw.tensor.datatype
    if datatype == "BYTES":
        return _strings(raw)
    if datatype not in _PACKED:
        raise InvalidRequest(f"output '{raw.tensor.name}' is of type {datatype}, which JSON does not have: ask for binary data")
    values = np.frombuffer(raw.data, "<" + _PACKED[datatype])
    if datatype not in _FLOATS:
        return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    return _numbers(values.astype("<f8"))


def _numbers(values: NDArray[Any]) -> bytes:
    """Write numbers as RapidJSON does: as orjson but for some magnitudes, and for what is no number."""
    size = np.abs(values)
    is_odd = ~np.isfinite(values) | (size >= _POSITIONAL_FROM) | ((size >= 1e-6) & (size < 1e-5))
    if not is_odd.any():
        return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"[" + ",".join(map(_number, values.tolist())).encode() + b"]"


def _number(value: float) -> str:
    if value - value != 0.0:  # what is no number, and infinity
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    size = abs(value)
    if _POSITIONAL_FROM <= size < _POSITIONAL_TO or 1e-6 <= size < 1e-5:
        return str(np.format_float_positional(value, trim="0"))
    return orjson.dumps(value).decode().replace("e+", "e")


def _strings(raw: RawTensor) -> bytes:
    try:
        return orjson.dumps([bytes(each).decode() for each in _split(raw.data)])
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"output '{raw.tensor.name}' has strings that are not UTF-8: ask for binary data") from exc


def _split(data: bytes | memoryview) -> Iterator[bytes | memoryview]:
    at = 0
    while at < len(data):
        (size,) = unpack_from("<I", data, at)
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def _flat(elements: list[Any]) -> Iterator[Any]:
    """The elements of nested arrays, in order; not by recursion, as a caller says how deep they are."""
    open_ = [iter(elements)]
    while open_:
        for each in open_[-1]:
            if type(each) is list:
                open_.append(iter(each))
                break
            yield each
        else:
            open_.pop()
