"""Hypothesis strategies of valid inference requests, as an HTTP client could send them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod

from hypothesis import strategies as st

from control_plane.core.tensor import DATATYPE_BYTES, Tensor
from control_plane.protocols.kserve.tensors.bytes_tensor import encode_bytes_elements

_NAMES = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple).filter(lambda shape: not (0 in shape[1:] and shape[0] == 0))
_INTEGERS = st.integers(-(2**63), 2**64 - 1)
_FLOATS = st.floats()  # NaN and infinities included: Python's writer spells them as Triton reads them
_TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
_PARAMETERS = st.dictionaries(
    _NAMES.filter(lambda name: name != "binary_data_size"), st.one_of(st.booleans(), _INTEGERS, _TEXTS), max_size=2
)


@dataclass(frozen=True)
class Sent:
    """A request on the wire: `body`, the header field that splits it, and the tensors that it declares."""

    body: bytes
    header_length: bytes | None
    request_id: str
    tensors: tuple[Tensor, ...]
    text_bytes: int
    """Size of all strings, without framing and quotes."""


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    """Any mixture of JSON and binary tensors of all data types."""
    tensors = draw(st.lists(st.builds(Tensor, _NAMES, st.sampled_from(sorted(DATATYPE_BYTES)), SHAPES), min_size=1, max_size=4))
    entries, binary, text_bytes = [], b"", 0
    for tensor in tensors:
        entry, content = draw(_entries(tensor))
        entries.append(entry)
        binary += content
        if tensor.datatype == "BYTES":
            texts = entry.get("data", [])
            assert isinstance(texts, list)
            text_bytes += len(content) - (4 * prod(tensor.shape) if content else 0) + len("".join(texts).encode())
    header: dict[str, object] = {"inputs": entries}
    if draw(st.booleans()):
        header["id"] = draw(_TEXTS)
    if draw(st.booleans()):
        header["parameters"] = draw(_PARAMETERS)
    if draw(st.booleans()):
        header["outputs"] = [{"name": draw(_NAMES), "parameters": {"binary_data": True}}]
    text = json.dumps(header, ensure_ascii=draw(st.booleans())).encode()
    header_length = b"%d" % len(text) if binary or draw(st.booleans()) else None
    return Sent(text + binary, header_length, str(header.get("id", "")), tuple(tensors), text_bytes)


@st.composite
def _entries(draw: st.DrawFn, tensor: Tensor) -> tuple[dict[str, object], bytes]:
    """The JSON object of one input, and its bytes in the binary part."""
    entry: dict[str, object] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    parameters: dict[str, object] = dict(draw(_PARAMETERS))
    count, content = prod(tensor.shape), b""
    if draw(st.booleans()):
        content = draw(_contents(tensor.datatype, count))
        parameters["binary_data_size"] = len(content)
    else:
        entry["data"] = draw(st.lists(_elements(tensor.datatype), min_size=count, max_size=count))
    if parameters:
        entry["parameters"] = parameters
    return entry, content


def _contents(datatype: str, count: int) -> st.SearchStrategy[bytes]:
    if datatype == "BYTES":
        return st.lists(st.binary(max_size=8), min_size=count, max_size=count).map(encode_bytes_elements)
    size = count * DATATYPE_BYTES[datatype]
    return st.binary(min_size=size, max_size=size)


def _elements(datatype: str) -> st.SearchStrategy[object]:
    if datatype == "BYTES":
        return _TEXTS
    if datatype == "BOOL":
        return st.booleans()
    return _FLOATS if datatype.startswith(("FP", "BF")) else _INTEGERS
