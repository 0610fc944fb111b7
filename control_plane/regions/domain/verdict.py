"""What another region's answer to a request says: whether it is the caller's answer, and what else may be sent there. Pure;
called by `regions/regions`."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Protocol, runtime_checkable

from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import GrpcAnswer, GrpcStatus
from control_plane.protocols.http1 import HttpAnswer


class RegionVerdict(StrEnum):
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
    200: RegionVerdict.ANSWERED,
    401: RegionVerdict.UNAUTHENTICATED,
    403: RegionVerdict.DENIED,
    404: RegionVerdict.MODEL_MISSING,
    422: RegionVerdict.QUARANTINED,
    429: RegionVerdict.LIMITED,
    501: RegionVerdict.INVALID,
    503: RegionVerdict.FULL,
    504: RegionVerdict.LOST,
}
_OF_GRPC: dict[int, RegionVerdict] = {
    GrpcStatus.OK: RegionVerdict.ANSWERED,
    GrpcStatus.UNAUTHENTICATED: RegionVerdict.UNAUTHENTICATED,
    GrpcStatus.PERMISSION_DENIED: RegionVerdict.DENIED,
    GrpcStatus.INVALID_ARGUMENT: RegionVerdict.INVALID,
    GrpcStatus.UNIMPLEMENTED: RegionVerdict.INVALID,
    GrpcStatus.NOT_FOUND: RegionVerdict.MODEL_MISSING,
    GrpcStatus.FAILED_PRECONDITION: RegionVerdict.QUARANTINED,
    GrpcStatus.RESOURCE_EXHAUSTED: RegionVerdict.LIMITED,
    GrpcStatus.UNAVAILABLE: RegionVerdict.FULL,
    GrpcStatus.DEADLINE_EXCEEDED: RegionVerdict.LOST,
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


def verdict_of(answer: object) -> RegionVerdict:
    """The verdict on an answer of another region's gateway: whole, or in pieces of which none has come."""
    if isinstance(answer, HttpAnswer | Streamed):
        if answer.status == 200 and not _IS_OF_A_MODEL.search(answer.head):
            return RegionVerdict.FAILED
        return _OF_HTTP.get(answer.status, RegionVerdict.FAILED if answer.status >= 500 else RegionVerdict.INVALID)
    if not isinstance(answer, GrpcAnswer):
        return RegionVerdict.FAILED
    if answer.loss is not None:
        return RegionVerdict.UNREACHABLE if answer.loss is SendFailure.NOT_SENT else RegionVerdict.LOST
    return _OF_GRPC.get(answer.code, RegionVerdict.FAILED)
