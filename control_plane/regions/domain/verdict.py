"""What another region's answer to a request says: whether it is the caller's answer, and what else may be sent there. Pure;
called by `regions/regions`."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Protocol, runtime_checkable

from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import GrpcAnswer, GrpcStatus
from control_plane.protocols.http1 import HttpAnswer


class Verdict(StrEnum):
    """What became of a request that was sent to another region; label `result` of the metrics."""

    __hash__ = str.__hash__  # for speed, see `core/infer_call.Frontend`

    ANSWERED = "answered"
    """It was computed: the only verdict by which the caller gets the answer."""
    FULL = "full"
    """There was no idle room for it."""
    MODEL_MISSING = "model_missing"
    UNAUTHENTICATED = "unauthenticated"
    """Its caller's key or token is not valid there."""
    DENIED = "denied"
    """Its caller may not call that model there."""
    LIMITED = "limited"
    """Its tenant's limits there are used up."""
    INVALID = "invalid"
    """There it is no request that can be computed."""
    QUARANTINED = "quarantined"
    """Processes have died under it there."""
    FAILED = "failed"
    """Any other error: it may have been computed."""
    UNREACHABLE = "unreachable"
    """Nothing of it was sent."""
    LOST = "lost"
    """The connection, or the time, was over before its answer: it may have been computed."""
    LEFT = "left"
    """Its caller has left."""


_OF_HTTP = {
    200: Verdict.ANSWERED,
    401: Verdict.UNAUTHENTICATED,
    403: Verdict.DENIED,
    404: Verdict.MODEL_MISSING,
    422: Verdict.QUARANTINED,
    429: Verdict.LIMITED,
    501: Verdict.INVALID,
    503: Verdict.FULL,
    504: Verdict.LOST,
}
_OF_GRPC: dict[int, Verdict] = {
    GrpcStatus.OK: Verdict.ANSWERED,
    GrpcStatus.UNAUTHENTICATED: Verdict.UNAUTHENTICATED,
    GrpcStatus.PERMISSION_DENIED: Verdict.DENIED,
    GrpcStatus.INVALID_ARGUMENT: Verdict.INVALID,
    GrpcStatus.UNIMPLEMENTED: Verdict.INVALID,
    GrpcStatus.NOT_FOUND: Verdict.MODEL_MISSING,
    GrpcStatus.FAILED_PRECONDITION: Verdict.QUARANTINED,
    GrpcStatus.RESOURCE_EXHAUSTED: Verdict.LIMITED,
    GrpcStatus.UNAVAILABLE: Verdict.FULL,
    GrpcStatus.DEADLINE_EXCEEDED: Verdict.LOST,
}

_IS_OF_A_MODEL = re.compile(rb"\r\ncontent-type:[ \t]*(?:application/(?:json|octet-stream)|text/event-stream)\b", re.IGNORECASE)
"""In the head of each answer to an inference request; pages of what stands in a region's place have another one."""


@runtime_checkable
class Streamed(Protocol):
    """Answer in pieces (`triton/ports.HttpStream`)."""

    status: int
    head: bytes

    async def receive(self) -> bytes | None:
        """See `triton/ports.HttpStream`."""

    def close(self) -> None:
        """See `triton/ports.HttpStream`."""


def verdict_of(answer: object) -> Verdict:
    """The verdict on an answer of another region's gateway: whole, or in pieces of which none has come."""
    if isinstance(answer, HttpAnswer | Streamed):
        if answer.status == 200 and not _IS_OF_A_MODEL.search(answer.head):
            return Verdict.FAILED
        return _OF_HTTP.get(answer.status, Verdict.FAILED if answer.status >= 500 else Verdict.INVALID)
    if not isinstance(answer, GrpcAnswer):
        return Verdict.FAILED
    if answer.loss is not None:
        return Verdict.UNREACHABLE if answer.loss is SendFailure.NOT_SENT else Verdict.LOST
    return _OF_GRPC.get(answer.code, Verdict.FAILED)
