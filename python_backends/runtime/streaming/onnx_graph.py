"""The graph of an ONNX file, with the places of its large weights instead of their bytes.

Follows onnx.proto of ONNX 1.23 (`ModelProto`, `GraphProto`, `NodeProto`, `TensorProto`). The file is read in
pieces: never more of it is in memory than its graph and one message without weights.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.streaming.wire import LENGTH, MAX_VARINT, VARINT, encode, encode_fields, fields, varint

STREAMED_FROM_BYTES = 16384
"""Smaller tensors stay in memory: shapes, biases and scales, which operators may want as constants."""
MAX_GRAPH_BYTES = 64 << 20
"""Bytes of all of a file but its streamed weights, at most."""

# TensorProto.DataType -> NumPy's: the types of weights that can be given to a part as an input.
DTYPES: Mapping[int, type[np.generic]] = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64,
    10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64,
}  # fmt: skip
TYPE_NAMES: Mapping[str, int] = {
    "tensor(float)": 1, "tensor(uint8)": 2, "tensor(int8)": 3, "tensor(uint16)": 4, "tensor(int16)": 5, "tensor(int32)": 6,
    "tensor(int64)": 7, "tensor(string)": 8, "tensor(bool)": 9, "tensor(float16)": 10, "tensor(double)": 11,
    "tensor(uint32)": 12, "tensor(uint64)": 13,
}  # fmt: skip

_GRAPH = 7
_NODE, _INITIALIZER, _SPARSE, _INPUT, _OUTPUT = 1, 5, 15, 11, 12
_DIMS, _TYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_SUBGRAPHS = {6, 11}
_PIECE = 4096


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the model and the place of its bytes: little-endian, in the order of its elements."""

    name: str
    data_type: int
    shape: tuple[int, ...]
    file: Path
    offset: int

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return np.dtype(DTYPES[self.data_type])

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Node:
    """An operator; `message` is all of it."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axis: int
    message: bytes

    def renamed(self, inputs: Mapping[int, str]) -> bytes:
        """Return its message with other inputs at these positions."""
        names = [inputs.get(index, name) for index, name in enumerate(self.inputs)]
        others = encode_fields(each for each in fields(self.message) if each[0] != 1)
        return encode(*((1, name) for name in names)) + others


@dataclass(slots=True)
class OnnxGraph:
    """A model: nodes in an order in which they can run, tensors, inputs and outputs by name as their messages."""

    head: bytes = b""
    """Fields of the model beside the graph: versions, operator sets, functions."""
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, bytes] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    inputs: dict[str, bytes] = field(default_factory=dict)
    outputs: dict[str, bytes] = field(default_factory=dict)


def read_graph(path: Path) -> OnnxGraph:
    """Read a file.

    Raises:
        ConfigError: It is no ONNX file, is cut, or has what cannot be computed in parts.
    """
    try:
        with path.open("rb", buffering=0) as file:
            graph = _Reader(path, file.fileno()).read()
    except (OSError, ValueError, OverflowError, TypeError) as exc:
        raise ConfigError(f"'{path}' cannot be streamed: {exc}") from exc
    for name in graph.inputs.keys() & (graph.constants.keys() | graph.weights.keys()):
        del graph.inputs[name]  # before version 4 of the format each tensor was an input as well
    return graph


@dataclass
class _Tensor:
    """A TensorProto, with the place of its bytes in this file (`raw`), or of those beside it (`external`)."""

    name: str = ""
    data_type: int = 0
    dims: list[int] = field(default_factory=list)
    raw: tuple[int, int] = (0, 0)
    is_external: bool = False
    external: dict[str, str] = field(default_factory=dict)

    @property
    def raw_bytes(self) -> int:
        return self.raw[1] - self.raw[0]


class _Reader:
    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._size = os.fstat(descriptor).st_size
        self._kept = 0
        self._graph = OnnxGraph()
        self._external: dict[Path, int] = {}

    def read(self) -> OnnxGraph:
        head, has_graph = bytearray(), False
        for number, kind, start, end in self._fields(0, self._size):
            if number == _GRAPH and kind == LENGTH and not has_graph:
                has_graph = True
                self._read_graph(start, end)
            elif number == _GRAPH:
                raise ValueError("it has two graphs")
            else:
                head += self._field(number, kind, start, end)
        if not has_graph or not self._graph.nodes:
            raise ValueError("it has no graph")
        self._graph.head = bytes(head)
        return self._graph

    def _read_graph(self, start: int, end: int) -> None:
        for number, kind, at, until in self._fields(start, end):
            if number == _INITIALIZER and kind == LENGTH:
                self._read_tensor(at, until)
            elif number == _SPARSE:
                raise ValueError("it has sparse weights")
            elif number == _NODE and kind == LENGTH:
                self._graph.nodes.append(_node(self._bytes(at, until)))
            elif number in (_INPUT, _OUTPUT) and kind == LENGTH:
                message = self._bytes(at, until)
                known = self._graph.inputs if number == _INPUT else self._graph.outputs
                known[_text(message, 1)] = message

    def _read_tensor(self, start: int, end: int) -> None:
        tensor = self._tensor(start, end)
        if tensor.name in self._graph.weights or tensor.name in self._graph.constants:
            raise ValueError(f"tensor '{tensor.name}' is there twice")
        if tensor.data_type in DTYPES and (tensor.is_external or tensor.raw_bytes >= STREAMED_FROM_BYTES):
            self._graph.weights[tensor.name] = self._weight(tensor)
        elif tensor.is_external:
            raise ValueError(f"tensor '{tensor.name}' is in another file and of a type that cannot be streamed")
        else:
            self._graph.constants[tensor.name] = self._bytes(start, end)

    def _tensor(self, start: int, end: int) -> _Tensor:
        tensor = _Tensor()
        for number, kind, at, until in self._fields(start, end):
            if number == _RAW and kind == LENGTH:
                tensor.raw = at, until
            elif number == _DIMS:
                tensor.dims += self._integers(kind, at, until)
            elif number == _TYPE and kind == VARINT:
                (tensor.data_type,) = self._integers(kind, at, until)
            elif number == _LOCATION and kind == VARINT:
                tensor.is_external = self._integers(kind, at, until) == [1]
            elif number == _NAME:
                tensor.name = self._bytes(at, until).decode()
            elif number == _EXTERNAL:
                entry = self._bytes(at, until)
                tensor.external[_text(entry, 1)] = _text(entry, 2)
        return tensor

    def _weight(self, tensor: _Tensor) -> Weight:
        """Return the place of a tensor's bytes, in this file or beside it. Raises ValueError: they are not all there."""
        file, offset, length = self._place(tensor.external) if tensor.is_external else (self._path, tensor.raw[0], tensor.raw_bytes)
        weight = Weight(tensor.name, tensor.data_type, tuple(tensor.dims), file, offset)
        if min(tensor.dims, default=1) < 0 or weight.size != (weight.size if length is None else length):
            raise ValueError(f"tensor '{tensor.name}' of the shape {tensor.dims} has {length} bytes")
        if offset < 0 or offset + weight.size > self._external.get(file, self._size):
            raise ValueError(f"tensor '{tensor.name}' ends after its file, '{file.name}'")
        return weight

    def _place(self, external: Mapping[str, str]) -> tuple[Path, int, int | None]:
        location = external.get("location", "")
        file = self._path.parent / location
        if not location or Path(location).is_absolute() or ".." in Path(location).parts:
            raise ValueError(f"weights in '{location[:200]}' are not beside it")
        if file not in self._external:
            state = os.stat(file)
            if not stat.S_ISREG(state.st_mode):
                raise ValueError(f"'{location[:200]}' is no file")
            self._external[file] = state.st_size
        length = external.get("length")
        return file, int(external.get("offset", "0")), None if length is None else int(length)

    def _fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield number, wire type, and where the value begins and ends."""
        at, piece, base = start, b"", start
        while at < end:
            if at - base + 2 * MAX_VARINT > len(piece):
                piece, base = os.pread(self._descriptor, _PIECE, at), at
            tag, after = varint(piece, at - base)
            number, kind = tag >> 3, tag & 7
            if kind == LENGTH:
                size, after = varint(piece, after)
            elif kind == VARINT:
                size = varint(piece, after)[1] - after
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
            else:
                raise ValueError("it is no ONNX file")
            begin = base + after
            if begin + size > end:
                raise ValueError("it is cut")
            yield number, kind, begin, begin + size
            at = begin + size

    def _field(self, number: int, kind: int, start: int, end: int) -> bytes:
        content = self._bytes(start, end)
        return encode_fields([(number, kind, varint(content, 0)[0] if kind == VARINT else content)])

    def _integers(self, kind: int, start: int, end: int) -> list[int]:
        content, at, found = self._bytes(start, end), 0, list[int]()
        while at < len(content):  # one, or packed
            value, at = varint(content, at)
            found.append(value - (1 << 64) if value >> 63 else value)
        return found

    def _bytes(self, start: int, end: int) -> bytes:
        self._kept += end - start
        if self._kept > MAX_GRAPH_BYTES:
            raise ValueError(f"it has more than {MAX_GRAPH_BYTES >> 20} MiB beside the weights that can be streamed")
        content = os.pread(self._descriptor, end - start, start)
        if len(content) != end - start:
            raise ValueError("it is cut")
        return content


def _node(message: bytes) -> Node:
    operator, axis = "", 0
    inputs, outputs = list[str](), list[str]()
    for number, _, value in fields(message):
        if number in (1, 2) and isinstance(value, bytes):
            (inputs if number == 1 else outputs).append(value.decode())
        elif number == 4 and isinstance(value, bytes):
            operator = value.decode()
        elif number == 5 and isinstance(value, bytes):
            attribute = {key: content for key, _, content in fields(value)}
            if attribute.keys() & _SUBGRAPHS:
                raise ValueError(f"its operator {operator or '?'} has a graph of its own")
            if attribute.get(1) == b"axis":
                axis = int(attribute.get(3, 0))
    return Node(operator, tuple(inputs), tuple(outputs), axis, message)


def _text(message: bytes, wanted: int) -> str:
    for number, _, value in fields(message):
        if number == wanted and isinstance(value, bytes):
            return value.decode()
    return ""
