"""Everything the control plane refuses or fails with.

    ControlPlaneError
        InvalidRequest            the request contradicts itself or the protocol
        UnparsableRequest         the request's JSON cannot be read at all
        PayloadTooLarge           a body or message beyond its limit
        HeadTooLarge              a request's head beyond its limits
        RouteNotFound             no such path on this door
        MethodNotAllowed          the path exists, the method does not
        Unauthenticated           no key or token was shown, or one that is not valid
        PermissionDenied          the caller may not do that, or it is switched off
        LimitExceeded             a tenant's rate, concurrency or quota is used up, or too many attempts failed
        ObjectNotFound            no key, tenant or route of that name
        Conflict                  somebody else has changed the object meanwhile, or it exists already
        StoreUnavailable          what the control plane remembers, or a store of models, cannot be reached
        ModelNotFound             no model of that name in any repository
        ModelLoadFailed           Triton tried and could not load or unload the model, or its files cannot be had
        NotSupported              a call of the protocol that this server does not offer
        UpstreamUnavailable       Triton is starting, restarting or gone
        UpstreamFailed            Triton answered a control call with an error
        DeadlineExceeded          the caller's time is over
        RequestTimeout            the caller began a request and did not go on sending it
        Overloaded                no room for the request now
        StartupError              the process cannot start as configured; the text says what to do

An error carries an `ErrorCode` and never an HTTP or gRPC number: `frontends/common/status.py` has the only such table.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class ErrorCode(Enum):
    """What kind of failure it is, independent of the protocol it is told over."""

    INVALID_ARGUMENT = "invalid_argument"
    UNPARSABLE = "unparsable"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    HEAD_TOO_LARGE = "head_too_large"
    ROUTE_NOT_FOUND = "route_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    LIMIT_EXCEEDED = "limit_exceeded"
    OBJECT_NOT_FOUND = "object_not_found"
    CONFLICT = "conflict"
    STORE_UNAVAILABLE = "store_unavailable"
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
    """`field` is the one of the request that is wrong, where a protocol has a place to say so."""

    code = ErrorCode.INVALID_ARGUMENT

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class UnparsableRequest(ControlPlaneError):
    code = ErrorCode.UNPARSABLE


class PayloadTooLarge(ControlPlaneError):
    code = ErrorCode.PAYLOAD_TOO_LARGE


class HeadTooLarge(ControlPlaneError):
    code = ErrorCode.HEAD_TOO_LARGE


class RouteNotFound(ControlPlaneError):
    code = ErrorCode.ROUTE_NOT_FOUND


class MethodNotAllowed(ControlPlaneError):
    code = ErrorCode.METHOD_NOT_ALLOWED

    def __init__(self, message: str, *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class Unauthenticated(ControlPlaneError):
    """`is_a_guess` is not what nobody here can check just now, such as a token whose issuer's keys are not there."""

    code = ErrorCode.UNAUTHENTICATED

    def __init__(self, message: str, *, is_a_guess: bool = True) -> None:
        super().__init__(message)
        self.is_a_guess = is_a_guess


class PermissionDenied(ControlPlaneError):
    code = ErrorCode.PERMISSION_DENIED


class LimitExceeded(ControlPlaneError):
    """`retry_after_s` is when it is worth another try; `limits` are the RateLimit fields of the answer, by name."""

    code = ErrorCode.LIMIT_EXCEEDED

    def __init__(self, message: str, *, retry_after_s: float = 1.0, limits: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.limits = limits


class ObjectNotFound(ControlPlaneError):
    code = ErrorCode.OBJECT_NOT_FOUND


class Conflict(ControlPlaneError):
    code = ErrorCode.CONFLICT


class StoreUnavailable(ControlPlaneError):
    code = ErrorCode.STORE_UNAVAILABLE


class ModelNotFound(ControlPlaneError):
    code = ErrorCode.MODEL_NOT_FOUND


class ModelLoadFailed(ControlPlaneError):
    """`upstream_code` is the gRPC status that Triton answered with; INTERNAL (13) where it was not Triton that failed.

    `is_passing` is what another try may not meet: its source changed while it was fetched, or what came was damaged.
    """

    code = ErrorCode.LOAD_FAILED

    def __init__(self, message: str, *, upstream_code: int = 13, is_passing: bool = False) -> None:
        super().__init__(message)
        self.upstream_code = upstream_code
        self.is_passing = is_passing


class NotSupported(ControlPlaneError):
    code = ErrorCode.NOT_SUPPORTED


class UpstreamUnavailable(ControlPlaneError):
    """`is_unsent`: nothing of the request has left, so that it may be sent elsewhere; else it may have been computed."""

    code = ErrorCode.UPSTREAM_UNAVAILABLE

    def __init__(self, message: str, *, is_unsent: bool = False) -> None:
        super().__init__(message)
        self.is_unsent = is_unsent


class UpstreamFailed(ControlPlaneError):
    code = ErrorCode.UPSTREAM_FAILED


class DeadlineExceeded(ControlPlaneError):
    code = ErrorCode.DEADLINE_EXCEEDED


class RequestTimeout(ControlPlaneError):
    code = ErrorCode.REQUEST_TIMEOUT


class Overloaded(ControlPlaneError):
    """`retry_after_s` is when there should be room, where that is known."""

    code = ErrorCode.OVERLOADED

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StartupError(ControlPlaneError):
    code = ErrorCode.STARTUP
