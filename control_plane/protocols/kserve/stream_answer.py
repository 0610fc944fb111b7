"""Turns a ModelInfer answer into a ModelStreamInfer one: in its envelope, and marked as the request's last
response.

Called by `frontends/kserve/grpc_stream`, which answers the requests of streams one by one.
"""

from __future__ import annotations

from control_plane.protocols.protobuf_fields import fields, varint

_INFER_RESPONSE = b"\x12"
"""Tag of `infer_response` in a ModelStreamInferResponse."""
_PARAMETERS = 4
"""Field number of `parameters` in a ModelInferResponse."""
_IS_FINAL = b'"\x1b\n\x15triton_final_response\x12\x02\x08\x01'
"""The parameter `triton_final_response` with the value true."""


def stream_answer(answer: bytes | memoryview) -> bytes:
    """Wrap a serialised ModelInferResponse in a serialised ModelStreamInferResponse, as Triton would write
    it."""
    # Fields keep the order of their numbers, as in Triton's own answers: the parameter goes between the
    # others.
    before: list[bytes | memoryview] = []
    behind: list[bytes | memoryview] = []
    for tag, field, _ in fields(memoryview(answer)):
        (before if tag >> 3 <= _PARAMETERS else behind).append(field)
    return b"".join((_INFER_RESPONSE, varint(len(answer) + len(_IS_FINAL)), *before, _IS_FINAL, *behind))
