"""Everything the control plane refuses or fails with.

    ControlPlaneError
        InvalidRequest            the request contradicts itself or the protocol
        UnparsableRequest         the request's JSON cannot be read at all
        PayloadTooLarge           a body or message beyond its limit
        RouteNotFound             no such path on this door
        MethodNotAllowed          the path exists, the method does not
        PermissionDenied          an administrator's call from elsewhere, or one that is switched off
        ModelNotFound             no model of that name in any repository
        ModelLoadFailed           Triton tried and could not load or unload the model
        NotSupported              a call of the protocol that this server does not offer
        UpstreamUnavailable       Triton is starting, restarting or gone
        UpstreamFailed            Triton answered a control call with an error
        DeadlineExceeded          the caller's time is over
        RequestTimeout            the caller began a request and did not go on sending it
        Overloaded                no room for the request now
        StartupError              the process cannot start as configured; the text says what to do

An error carries an `ErrorCode` and never an HTTP or gRPC number: `api/status.py` has the only such table.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class ErrorCode(Enum):
    """What kind of failure it is, independent of the protocol it is told over."""

    INVALID_ARGUMENT = "invalid_argument"
    UNPARSABLE = "unparsable"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    ROUTE_NOT_FOUND = "route_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    PERMISSION_DENIED = "permission_denied"
    MODEL_NOT_FOUND = "model_not_found"
    LOAD_FAILED = "load_failed"
    NOT_SUPPORTED = "not_supported"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    UPSTREAM_FAILED = "upstream_failed"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    REQUEST_TIMEOUT = "request_timeout"
    OVERLOADED = "overloaded"
    STARTUP = "startup"


class ControlPlaneError(Exception):
    """Root of all errors; the message says what was wrong, where, and what would be right."""

    code: ClassVar[ErrorCode]


class InvalidRequest(ControlPlaneError):
    code = ErrorCode.INVALID_ARGUMENT


class UnparsableRequest(ControlPlaneError):
    code = ErrorCode.UNPARSABLE


class PayloadTooLarge(ControlPlaneError):
    code = ErrorCode.PAYLOAD_TOO_LARGE


class RouteNotFound(ControlPlaneError):
    code = ErrorCode.ROUTE_NOT_FOUND


class MethodNotAllowed(ControlPlaneError):
    code = ErrorCode.METHOD_NOT_ALLOWED

    def __init__(self, message: str, *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class PermissionDenied(ControlPlaneError):
    code = ErrorCode.PERMISSION_DENIED


class ModelNotFound(ControlPlaneError):
    code = ErrorCode.MODEL_NOT_FOUND


class ModelLoadFailed(ControlPlaneError):
    """`upstream_code` is the gRPC status that Triton answered with; INTERNAL (13) where it was not Triton that failed."""

    code = ErrorCode.LOAD_FAILED

    def __init__(self, message: str, *, upstream_code: int = 13) -> None:
        super().__init__(message)
        self.upstream_code = upstream_code


class NotSupported(ControlPlaneError):
    code = ErrorCode.NOT_SUPPORTED


class UpstreamUnavailable(ControlPlaneError):
    code = ErrorCode.UPSTREAM_UNAVAILABLE


class UpstreamFailed(ControlPlaneError):
    code = ErrorCode.UPSTREAM_FAILED


class DeadlineExceeded(ControlPlaneError):
    code = ErrorCode.DEADLINE_EXCEEDED


class RequestTimeout(ControlPlaneError):
    code = ErrorCode.REQUEST_TIMEOUT


class Overloaded(ControlPlaneError):
    code = ErrorCode.OVERLOADED


class StartupError(ControlPlaneError):
    code = ErrorCode.STARTUP
