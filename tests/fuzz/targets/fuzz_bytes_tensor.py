"""BYTES framing: accepted exactly when a plain walk over it comes out even."""

from __future__ import annotations

import struct

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from control_plane.core.algorithms.steps import finish
    from control_plane.core.errors import InvalidRequest
    from control_plane.core.tensor import Tensor
    from control_plane.protocols.kserve.tensors.bytes_tensor import bytes_tensor_steps


def check(data: bytes) -> None:
    expected, framed = (data[0], data[1:]) if data else (0, b"")
    try:
        finish(bytes_tensor_steps(Tensor("X", "BYTES", (expected,)), framed, start=0, end=len(framed)))
        accepted = True
    except InvalidRequest:
        accepted = False
    assert accepted == (elements_in(framed) == expected)


def elements_in(framed: bytes) -> int | None:
    """How many there are; None when a length or an element is cut off."""
    count = 0
    while framed:
        if len(framed) < 4:
            return None
        (length,) = struct.unpack("<I", framed[:4])
        if length > len(framed) - 4:
            return None
        framed, count = framed[4 + length :], count + 1
    return count


if __name__ == "__main__":
    fuzz(check)
