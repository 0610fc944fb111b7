"""The only table from our errors to HTTP and gRPC statuses; all frontends, the admin API and its OpenAPI
document use it.

Where Triton has a status for the same mistake, Triton's is used: for instance 500 for JSON that cannot be
parsed.
"""

from __future__ import annotations

import asyncio
from math import ceil
from typing import NamedTuple

import grpc

from control_plane.core.errors import ControlPlaneError, ErrorCode, LimitExceeded, Overloaded, StoreUnavailable, UpstreamUnavailable
from control_plane.core.infer_call import Frontend
from control_plane.metering.domain.usage import ClientStatus

_MAX_MESSAGE_CHARS = 600
"""Longest error text that is sent. gRPC's metadata may hold 8 KiB, and a character may take up to twelve
bytes there; also, a caller's own megabytes must not be repeated to it."""


class Status(NamedTuple):
    """Statuses of one error over HTTP and gRPC."""

    http: int
    grpc: grpc.StatusCode
    retryable: bool
    """Whether the same request may succeed when it is sent again later."""


STATUS: dict[ErrorCode, Status] = {
    ErrorCode.INVALID_ARGUMENT: Status(400, grpc.StatusCode.INVALID_ARGUMENT, False),
    ErrorCode.UNPARSABLE: Status(500, grpc.StatusCode.INVALID_ARGUMENT, False),
    ErrorCode.PAYLOAD_TOO_LARGE: Status(413, grpc.StatusCode.RESOURCE_EXHAUSTED, False),
    ErrorCode.HEAD_TOO_LARGE: Status(431, grpc.StatusCode.RESOURCE_EXHAUSTED, False),
    # gRPC's own answer to a method that a server does not have is UNIMPLEMENTED.
    ErrorCode.ROUTE_NOT_FOUND: Status(404, grpc.StatusCode.UNIMPLEMENTED, False),
    ErrorCode.METHOD_NOT_ALLOWED: Status(405, grpc.StatusCode.UNIMPLEMENTED, False),
    ErrorCode.UNAUTHENTICATED: Status(401, grpc.StatusCode.UNAUTHENTICATED, False),
    ErrorCode.PERMISSION_DENIED: Status(403, grpc.StatusCode.PERMISSION_DENIED, False),
    ErrorCode.LIMIT_EXCEEDED: Status(429, grpc.StatusCode.RESOURCE_EXHAUSTED, True),
    ErrorCode.OBJECT_NOT_FOUND: Status(404, grpc.StatusCode.NOT_FOUND, False),
    ErrorCode.CONFLICT: Status(409, grpc.StatusCode.ABORTED, False),
    ErrorCode.IDEMPOTENCY_KEY_REUSED: Status(422, grpc.StatusCode.INVALID_ARGUMENT, False),
    ErrorCode.STORE_UNAVAILABLE: Status(503, grpc.StatusCode.UNAVAILABLE, True),
    ErrorCode.MODEL_NOT_FOUND: Status(404, grpc.StatusCode.NOT_FOUND, False),
    ErrorCode.LOAD_FAILED: Status(422, grpc.StatusCode.FAILED_PRECONDITION, False),
    ErrorCode.NOT_SUPPORTED: Status(501, grpc.StatusCode.UNIMPLEMENTED, False),
    ErrorCode.UPSTREAM_UNAVAILABLE: Status(503, grpc.StatusCode.UNAVAILABLE, True),
    ErrorCode.GATEWAY_STOPPING: Status(503, grpc.StatusCode.UNAVAILABLE, True),
    ErrorCode.UPSTREAM_FAILED: Status(502, grpc.StatusCode.INTERNAL, False),
    ErrorCode.DEADLINE_EXCEEDED: Status(504, grpc.StatusCode.DEADLINE_EXCEEDED, True),
    ErrorCode.REQUEST_TIMEOUT: Status(408, grpc.StatusCode.DEADLINE_EXCEEDED, True),
    ErrorCode.OVERLOADED: Status(503, grpc.StatusCode.UNAVAILABLE, True),
    # No status that clients repeat a request for: each repeat could end another process.
    ErrorCode.QUERY_OF_DEATH: Status(422, grpc.StatusCode.FAILED_PRECONDITION, False),
    ErrorCode.STARTUP: Status(500, grpc.StatusCode.INTERNAL, False),
}


def advice_of(error: ControlPlaneError) -> list[tuple[bytes, bytes]]:
    """Header fields, or gRPC metadata, with advice: when to retry, how much of a limit is left, how to
    authenticate."""
    if isinstance(error, LimitExceeded):
        # Whole seconds (RFC 9110, 10.2.3), and never 0, which would be at once.
        fields = [(b"Retry-After", b"%d" % max(1, ceil(error.retry_after_s)))]
        return [*fields, *((name.encode(), value.encode()) for name, value in error.limits)]
    if isinstance(error, Overloaded):
        return [(b"Retry-After", b"%d" % max(1, ceil(error.retry_after_s or 1.0)))]
    if isinstance(error, UpstreamUnavailable):
        return [(b"Retry-After", b"%d" % max(1, ceil(error.retry_after_s)))]
    if error.code is ErrorCode.GATEWAY_STOPPING:
        return [(b"Retry-After", b"1")]
    return [(b"WWW-Authenticate", b"Bearer")] if error.code is ErrorCode.UNAUTHENTICATED else []


def client_status_of(frontend: Frontend, error: BaseException) -> ClientStatus:
    """The status and text that a caller by this protocol gets for an error, for the request log."""
    is_http = frontend is Frontend.HTTP
    if isinstance(error, ControlPlaneError):
        status = STATUS[error.code]
        return ClientStatus(status.http if is_http else status.grpc.value[0], message_of(error))
    if isinstance(error, asyncio.CancelledError):
        return ClientStatus(None)
    return ClientStatus(500 if is_http else grpc.StatusCode.INTERNAL.value[0], "internal error of the gateway")


def message_of(error: ControlPlaneError) -> str:
    """The error's text as a frontend sends it, cut to a bounded length."""
    text = error.shown if isinstance(error, StoreUnavailable) else str(error)
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[:_MAX_MESSAGE_CHARS] + " ..."
