"""An answer to ModelInfer as ModelStreamInfer gives it: in its envelope, and marked as the last of its request."""

from __future__ import annotations

from control_plane.protocols.protobuf_fields import fields, varint

_INFER_RESPONSE = b"\x12"
"""Tag of that field in a ModelStreamInferResponse."""
_PARAMETERS = 4
"""Number of that field in a ModelInferResponse."""
_IS_FINAL = b'"\x1b\n\x15triton_final_response\x12\x02\x08\x01'
"""The parameter `triton_final_response` with the value true."""


def stream_answer(answer: bytes | memoryview) -> bytes:
    """A serialised ModelStreamInferResponse for a serialised ModelInferResponse, as Triton would write it."""
    before: list[bytes | memoryview] = []
    behind: list[bytes | memoryview] = []
    for tag, field, _ in fields(memoryview(answer)):
        (before if tag >> 3 <= _PARAMETERS else behind).append(field)
    return b"".join((_INFER_RESPONSE, varint(len(answer) + len(_IS_FINAL)), *before, _IS_FINAL, *behind))
