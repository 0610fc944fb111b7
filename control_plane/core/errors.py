"""The tree of errors that the control plane raises.

    ControlPlaneError
        InvalidRequest            the request contradicts itself or the protocol
        UnparsableRequest         the request's JSON cannot be read at all
        PayloadTooLarge           a body or message beyond its limit
        HeadTooLarge              a request's head beyond its limits
        RouteNotFound             no such path on this frontend
        MethodNotAllowed          the path exists, the method does not
        Unauthenticated           no key or token was shown, or one that is not valid
        PermissionDenied          the caller may not do that, or it is switched off
        LimitExceeded             a tenant's rate, concurrency or quota is used up, or too many attempts failed
        ObjectNotFound            no key, tenant or route of that name
        Conflict                  somebody else has changed the object meanwhile, or it exists already
        IdempotencyKeyReused      the idempotency key came before, with another request
        StoreUnavailable          the state store, or a store of models, cannot be reached
        ModelNotFound             no model of that name in any repository
        ModelLoadFailed           Triton could not load or unload the model, or its files could not be fetched
        NotSupported              a call of the protocol that this server does not offer
        UpstreamUnavailable       Triton is starting, restarting or gone
        GatewayStopping           the gateway itself is stopping, and does not answer the request any more
        UpstreamFailed            Triton answered a control call with an error
        DeadlineExceeded          the request's deadline has passed
        RequestTimeout            the caller stopped sending in the middle of a request
        Overloaded                no room for the request now
        QueryOfDeath              processes have died under the request, so it is not sent again
        StartupError              the process cannot start as configured; the text says what to do

An error carries an `ErrorCode` and never an HTTP or gRPC number: `frontends/common/status.py` has the only
such table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

DEFECT_TEXT = "internal error of the gateway; its log has the details"
"""Text that callers are told of a defect: the text of its own error may show what is not theirs to see."""


class ErrorCode(Enum):
    """Kind of an error, independent of the protocol that reports it. The values are stable, since clients see
    them.
    """

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
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    STORE_UNAVAILABLE = "store_unavailable"
    MODEL_NOT_FOUND = "model_not_found"
    LOAD_FAILED = "load_failed"
    NOT_SUPPORTED = "not_supported"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    GATEWAY_STOPPING = "gateway_stopping"
    UPSTREAM_FAILED = "upstream_failed"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    REQUEST_TIMEOUT = "request_timeout"
    OVERLOADED = "overloaded"
    QUERY_OF_DEATH = "query_of_death"
    STARTUP = "startup"


class ControlPlaneError(Exception):
    """Root of all errors; the message says what was wrong, where, and what would be right."""

    code: ClassVar[ErrorCode]


class InvalidRequest(ControlPlaneError):
    """The request contradicts itself or the protocol.

    `field` names the wrong field of the request, for protocols that report it (OpenAI's `param`).
    """

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
    """No key or token was shown, or one that is not valid.

    `counts_as_failed_attempt` says whether to count it as a failed attempt; False for what cannot be checked right now,
    such as a token whose issuer's keys are missing.
    """

    code = ErrorCode.UNAUTHENTICATED

    def __init__(self, message: str, *, counts_as_failed_attempt: bool = True) -> None:
        super().__init__(message)
        self.counts_as_failed_attempt = counts_as_failed_attempt


class PermissionDenied(ControlPlaneError):
    code = ErrorCode.PERMISSION_DENIED


class LimitExceeded(ControlPlaneError):
    """A tenant's rate, concurrency or quota is used up, or too many logins failed.

    `retry_after_s` is when to try again; `limits` are the answer's RateLimit header fields, as (name, value).
    """

    code = ErrorCode.LIMIT_EXCEEDED

    def __init__(self, message: str, *, retry_after_s: float = 1.0, limits: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.limits = limits


class ObjectNotFound(ControlPlaneError):
    code = ErrorCode.OBJECT_NOT_FOUND


class Conflict(ControlPlaneError):
    code = ErrorCode.CONFLICT


class IdempotencyKeyReused(ControlPlaneError):
    code = ErrorCode.IDEMPOTENCY_KEY_REUSED


class StoreUnavailable(ControlPlaneError):
    """A store cannot be reached, or cannot write: with `is_full` since its disk or memory is full.

    `shown` is what callers of the data ports are told where the message says where the store is.
    """

    code = ErrorCode.STORE_UNAVAILABLE

    def __init__(self, message: str, *, is_full: bool = False, shown: str = "") -> None:
        super().__init__(message)
        self.is_full = is_full
        self.shown = shown or message


class ModelNotFound(ControlPlaneError):
    code = ErrorCode.MODEL_NOT_FOUND


class ModelLoadFailed(ControlPlaneError):
    """Triton could not load or unload the model, or its files could not be fetched.

    `upstream_code` is the gRPC status that Triton answered with; INTERNAL (13) if something else failed.
    `is_transient` marks failures that a retry may not meet: the files changed during the fetch, or arrived
    damaged.
    """

    code = ErrorCode.LOAD_FAILED

    def __init__(self, message: str, *, upstream_code: int = 13, is_transient: bool = False) -> None:
        super().__init__(message)
        self.upstream_code = upstream_code
        self.is_transient = is_transient


class NotSupported(ControlPlaneError):
    code = ErrorCode.NOT_SUPPORTED


class RecallCause(Enum):
    """Why a request in flight was taken back, to be sent to another replica."""

    SERVER_SILENT = "its server says nothing"
    REPLICA_SILENT = "its replica answers nobody, while others of the model do"
    STUB_DIED = "the Python process of its replica has died"


@dataclass(frozen=True, slots=True)
class Recall:
    """Recall of a request in flight from a server or replica that answers nobody."""

    cause: RecallCause
    is_suspect: bool = False
    """A process died, and it may have been computing this request."""


class UpstreamUnavailable(ControlPlaneError):
    """No Triton can be asked: it is starting, restarting or gone.

    With `is_not_sent` nothing of the request was sent, so it is safe to send it elsewhere; else it may have
    been computed. With `is_answer` Triton itself has said so, with `recall` it was taken back. `retry_after_s` is in how many
    seconds one should be there.
    """

    code = ErrorCode.UPSTREAM_UNAVAILABLE

    def __init__(
        self,
        message: str,
        *,
        is_not_sent: bool = False,
        is_answer: bool = False,
        recall: Recall | None = None,
        retry_after_s: float = 1.0,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.is_not_sent = is_not_sent
        self.is_answer = is_answer
        self.recall = recall


class GatewayStopping(ControlPlaneError):
    """The gateway itself is stopping; another one, or the next, can answer the request."""

    code = ErrorCode.GATEWAY_STOPPING

    def __init__(self, message: str = "the gateway is stopping; try again shortly") -> None:
        super().__init__(message)


class UpstreamFailed(ControlPlaneError):
    code = ErrorCode.UPSTREAM_FAILED


class DeadlineExceeded(ControlPlaneError):
    code = ErrorCode.DEADLINE_EXCEEDED


class RequestTimeout(ControlPlaneError):
    code = ErrorCode.REQUEST_TIMEOUT


class Overloaded(ControlPlaneError):
    """There is no room for the request now; `retry_after_s` is when there should be, where that is known."""

    code = ErrorCode.OVERLOADED

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.holds_for_equals: Callable[[float], bool] | None = None
        """Whether an equal request that has so many seconds less would be refused for the same reason just now; None: nobody knows."""


class QueryOfDeath(ControlPlaneError):
    """Two processes have died under the request, so it is not sent to a third."""

    code = ErrorCode.QUERY_OF_DEATH


class StartupError(ControlPlaneError):
    code = ErrorCode.STARTUP
