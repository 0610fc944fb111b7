"""Framing of BYTES tensors: each element is a 4-byte little-endian length and that many bytes.

Source: KServe v2 "binary tensor data" extension. A length that points beyond its buffer kills the Python stub
of Triton 24.10, so the frontends walk every BYTES tensor before Triton sees it; in steps, since millions of
elements take seconds.
"""

from __future__ import annotations

from struct import Struct

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import InvalidRequest
from control_plane.core.tensor import Tensor, element_count

_LENGTH = Struct("<I")
_ELEMENTS_PER_STEP = 8192
"""Walking so many elements takes about 2 ms."""


def bytes_tensor_steps(tensor: Tensor, data: bytes | bytearray | memoryview, *, start: int, end: int) -> Steps[None]:
    """Check the framing of the elements in `data[start:end]`, and their number against the tensor's shape.

    Raises:
        InvalidRequest: a length or an element is cut off, or there are more or fewer elements than the shape
            says.
    """
    expected = element_count(tensor.shape)
    found, offset = 0, start
    while offset < end:
        if end - offset < 4:
            raise InvalidRequest(
                f"incomplete string length indicator for inference input '{tensor.name}', "
                f"expecting 4 bytes but only {end - offset} bytes available"
            )
        (length,) = _LENGTH.unpack_from(data, offset)
        offset += 4 + length  # may point beyond `end`, which is checked below before anything is read there
        found += 1
        if found % _ELEMENTS_PER_STEP == 0:
            yield
        if offset > end:
            raise InvalidRequest(
                f"incomplete string data for inference input '{tensor.name}', "
                f"expecting string of length {length} but only {end - offset + length} bytes available"
            )
    if found != expected:
        raise InvalidRequest(f"expected {expected} string elements for inference input '{tensor.name}', got {found}")


def encode_bytes_elements(elements: list[bytes]) -> bytes:
    """Encode `elements` in the framing that `bytes_tensor_steps` checks."""
    return b"".join(_LENGTH.pack(len(element)) + element for element in elements)
