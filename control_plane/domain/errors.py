"""Everything the control plane refuses or fails with.

    ControlPlaneError
        InvalidRequest            the request contradicts itself or the protocol
        UnparsableRequest         the request's JSON cannot be read at all
        PayloadTooLarge           a body or message beyond its limit
        RouteNotFound             no such path on this door
        MethodNotAllowed          the path exists, the method does not
        ModelNotFound             no model of that name in any repository
        ModelLoadFailed           Triton tried and could not load or unload the model
        NotSupported              a call of the protocol that this server does not offer
        UpstreamUnavailable       Triton is starting, restarting or gone
        UpstreamFailed            Triton answered a control call with an error
        DeadlineExceeded          the caller's time is over
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
    MODEL_NOT_FOUND = "model_not_found"
    LOAD_FAILED = "load_failed"
    NOT_SUPPORTED = "not_supported"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    UPSTREAM_FAILED = "upstream_failed"
    DEADLINE_EXCEEDED = "deadline_exceeded"
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


class ModelNotFound(ControlPlaneError):
    code = ErrorCode.MODEL_NOT_FOUND


class ModelLoadFailed(ControlPlaneError):
    code = ErrorCode.LOAD_FAILED


class NotSupported(ControlPlaneError):
    code = ErrorCode.NOT_SUPPORTED


class UpstreamUnavailable(ControlPlaneError):
    code = ErrorCode.UPSTREAM_UNAVAILABLE


class UpstreamFailed(ControlPlaneError):
    code = ErrorCode.UPSTREAM_FAILED


class DeadlineExceeded(ControlPlaneError):
    code = ErrorCode.DEADLINE_EXCEEDED


class StartupError(ControlPlaneError):
    code = ErrorCode.STARTUP
