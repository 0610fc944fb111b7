"""Tensors as KServe v2 declares them: data types, shapes and the bytes they need.

Source: KServe "Open Inference Protocol", tensor data types; Triton adds BF16.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

DATATYPE_BYTES = {
    "BOOL": 1,
    "UINT8": 1,
    "INT8": 1,
    "UINT16": 2,
    "INT16": 2,
    "FP16": 2,
    "BF16": 2,
    "UINT32": 4,
    "INT32": 4,
    "FP32": 4,
    "UINT64": 8,
    "INT64": 8,
    "FP64": 8,
    "BYTES": 0,
}
"""Bytes of one element; 0 for BYTES, whose elements carry their own length."""

MAX_ELEMENTS = 2**40
"""More elements than any request can carry; beyond 2**63 the product overflows inside Triton and kills it."""

MAX_DIMENSION = 2**31 - 1
"""Triton keeps a batch size in 32 bits: 2**32 + 1 runs as a batch of one, 2**32 as an empty one (server
2.51)."""

MAX_RANK = 256
"""Most dimensions of a tensor: each is looked at, and NumPy takes 64 of them."""

MAX_TENSORS = 1024
"""Most inputs of a request, and most outputs that one may name: each is looked at, in some two microseconds."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Name, data type and shape of one input of a request; the shape includes the batch dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RawTensor:
    """Tensor with its data: row-major, little-endian, strings each behind its length (4 bytes)."""

    tensor: Tensor
    data: bytes | memoryview


def element_count(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a tensor of this shape; 1 for a scalar."""
    return prod(shape)
