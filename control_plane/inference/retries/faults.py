"""The table of faults: what came back instead of an answer, whether the request may be sent to another copy of
its model for it, and what it says of the server.

Triton (24.10) has one status for several situations, so an error is told by its text: 503 and UNAVAILABLE are a
full queue, a version that is being loaded, a request whose time ran out, a server that stops, or, over gRPC, a
call that the caller may not make. It reports a dead stub process only in the text of an error, and goes on
listing the model as READY. Both protocols have the same texts.

Called by the dispatchers, of a fleet (`fleet/routing/dispatch`) and of a single server
(`inference/dispatch/single_server`). A model may answer with any of these texts itself: then its request is sent once more
than it need be, and only if it is repeatable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from control_plane.core.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    ModelLoadFailed,
    ModelNotFound,
    Overloaded,
    QueryOfDeath,
    Recall,
    RecallCause,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.core.infer_call import SendFailure
from control_plane.inference.retries.server_fault import READ_BYTES, dead_stub_model_in, dead_stub_model_in_event, is_error_event
from control_plane.protocols.grpc import GrpcAnswer, GrpcStatus
from control_plane.protocols.http1 import HttpAnswer


class Fault(Enum):
    """Fault of an attempt: what came back instead of an answer."""

    NOT_SENT = auto()
    """The connection could not be made, or was closed before anything was sent."""
    CONNECTION_LOST = auto()
    """The connection was lost before the response; the request may have been computed."""
    SERVER_SILENT = auto()
    """The request was taken back from a server that says nothing, and may have computed it."""
    REPLICA_SILENT = auto()
    """The request was taken back from a replica that answers nobody while others of the model do, and may have
    computed it."""
    TIMED_OUT = auto()
    """The deadline passed without a response, or the caller has left."""
    MODEL_MISSING = auto()
    """The server does not have the model, or not this version."""
    NOT_READY = auto()
    """The version is being loaded or unloaded."""
    QUEUE_FULL = auto()
    """The model's queue in Triton is full (`max_queue_size`)."""
    EXPIRED_IN_QUEUE = auto()
    """The request's time ran out in Triton's queue."""
    STOPPING = auto()
    """The server is stopping, or not yet started."""
    RESTRICTED = auto()
    """The call is restricted (`--http-restricted-api`, `--grpc-restricted-protocol`)."""
    CANCELLED = auto()
    """The request was cancelled."""
    DEAD_STUB = auto()
    """The stub process of a Python model has died: a server says so, or the request was taken back for it."""
    DEFECT = auto()
    """The send failed in the gateway itself."""
    OTHER = auto()
    """Any other error: the request's own, or the model's."""


class Resend(Enum):
    """Which requests may be sent to another copy for a fault."""

    ALWAYS = auto()
    """Any request: it has not been computed."""
    IF_REPEATABLE = auto()
    """Requests that do no harm if they are computed twice."""
    IF_CAPACITY = auto()
    """Requests as of `IF_REPEATABLE`, and only where a copy could begin at once: a busy one would be overloaded further."""
    NEVER = auto()


class Conclusion(Enum):
    """Conclusion from a fault about the server."""

    NOTHING = auto()
    """The server answers."""
    LACKS_MODEL = auto()
    """The server's copy of the model is not there."""
    STUB_DIED = auto()
    """The server's copy of the model has to be loaded anew."""
    UNREACHABLE = auto()
    """Nothing listens at the server's address: its copies are gone until it is looked at."""
    BROKEN = auto()
    """Other servers are preferred until this one is looked at."""
    SILENT = auto()
    """The server may hang."""


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    """Row of the table of faults."""

    resend: Resend
    conclusion: Conclusion
    is_budgeted: bool = True
    """Whether a resend is spent from the retry budget; not where no server has worked at the request."""
    times: int = 1
    """How often one request is sent again for this fault, at most."""


FAULTS: Mapping[Fault, FaultPolicy] = {
    Fault.NOT_SENT: FaultPolicy(Resend.ALWAYS, Conclusion.UNREACHABLE, is_budgeted=False),
    Fault.CONNECTION_LOST: FaultPolicy(Resend.IF_REPEATABLE, Conclusion.BROKEN),
    Fault.SERVER_SILENT: FaultPolicy(Resend.IF_REPEATABLE, Conclusion.BROKEN, times=2),  # servers may freeze one after the other
    Fault.REPLICA_SILENT: FaultPolicy(Resend.IF_REPEATABLE, Conclusion.SILENT),
    Fault.TIMED_OUT: FaultPolicy(Resend.NEVER, Conclusion.SILENT),
    Fault.MODEL_MISSING: FaultPolicy(Resend.ALWAYS, Conclusion.LACKS_MODEL, is_budgeted=False),
    # The next two may come from a step of an ensemble, after others have been computed.
    Fault.NOT_READY: FaultPolicy(Resend.IF_REPEATABLE, Conclusion.NOTHING),
    Fault.QUEUE_FULL: FaultPolicy(Resend.IF_CAPACITY, Conclusion.NOTHING),
    Fault.EXPIRED_IN_QUEUE: FaultPolicy(Resend.NEVER, Conclusion.NOTHING),
    Fault.STOPPING: FaultPolicy(Resend.IF_REPEATABLE, Conclusion.BROKEN),
    Fault.RESTRICTED: FaultPolicy(Resend.NEVER, Conclusion.NOTHING),
    Fault.CANCELLED: FaultPolicy(Resend.NEVER, Conclusion.NOTHING),
    # A dead process computes nothing, and what it was computing is one batch: no load that a budget must bound.
    # A query of death ends two before it is refused, and one may be in flight beside several such queries.
    Fault.DEAD_STUB: FaultPolicy(Resend.IF_REPEATABLE, Conclusion.STUB_DIED, is_budgeted=False, times=3),
    Fault.DEFECT: FaultPolicy(Resend.NEVER, Conclusion.BROKEN),
    Fault.OTHER: FaultPolicy(Resend.NEVER, Conclusion.NOTHING),
}
"""The table of faults."""

DEATHS = frozenset((Fault.CONNECTION_LOST, Fault.DEAD_STUB))
"""Faults by which a process is seen to end that was computing the request."""

_OK = GrpcStatus.OK  # once: in Python 3.11 to look up a member of an enum takes as long as a call
_LOSSES = {
    SendFailure.NOT_SENT: Fault.NOT_SENT,
    SendFailure.CONNECTION_LOST: Fault.CONNECTION_LOST,
    SendFailure.TIMED_OUT: Fault.TIMED_OUT,
}
_RECALLS = {
    RecallCause.SERVER_SILENT: Fault.SERVER_SILENT,
    RecallCause.REPLICA_SILENT: Fault.REPLICA_SILENT,
    RecallCause.STUB_DIED: Fault.DEAD_STUB,
}
_UNAVAILABLE = {
    b"is not at ready state": Fault.NOT_READY,
    b"Exceeds maximum queue size": Fault.QUEUE_FULL,
    b"Request timeout expired": Fault.EXPIRED_IN_QUEUE,
    b"Server is stopping": Fault.STOPPING,
    b"Server not ready": Fault.STOPPING,
    b"protocol is restricted": Fault.RESTRICTED,
}
"""Triton's words (24.10) in errors of the status UNAVAILABLE: `model_lifecycle.cc`, `scheduler_utils.cc`,
`dynamic_batch_scheduler.cc`, `server.cc` and `grpc/grpc_utils.h`."""
_UNAVAILABLE_WORDS = re.compile(b"|".join(map(re.escape, _UNAVAILABLE)))
_CALLERS_OWN = frozenset((Fault.RESTRICTED, Fault.CANCELLED))
_SERVERS_CODES = frozenset((GrpcStatus.UNKNOWN, GrpcStatus.INTERNAL, GrpcStatus.UNAVAILABLE, GrpcStatus.DATA_LOSS))
"""Statuses of gRPC that no request has brought about by what it asks for."""
_CANCELLED_WORDS = re.compile(rb"(?i)request (was |has been )?cancelled")


def fault_in(answer: object) -> Fault | None:
    """The fault that an answer tells of; None for a successful one, and for a stream, whose head says nothing."""
    if isinstance(answer, HttpAnswer):
        return None if answer.status == 200 else _http_fault(answer.status, bytes(answer.body[:READ_BYTES]))
    if not isinstance(answer, GrpcAnswer):
        return None
    if answer.loss is not None:
        return _LOSSES[answer.loss]
    return None if answer.code == _OK else _grpc_fault(answer.code, answer.details[:READ_BYTES].encode())


def fault_of_error(error: BaseException) -> Fault:
    """The fault that an error tells of with which a send has ended."""
    match error:
        case UpstreamUnavailable():
            if error.recall is not None:
                return fault_of_recall(error.recall.cause)
            if error.is_answer:
                return _unavailable(str(error).encode())
            return Fault.NOT_SENT if error.is_not_sent else Fault.CONNECTION_LOST
        case DeadlineExceeded():
            return Fault.TIMED_OUT
        case ModelNotFound():
            return Fault.MODEL_MISSING
        case ControlPlaneError():
            return Fault.OTHER if dead_stub_model_in(str(error).encode()) is None else Fault.DEAD_STUB
        case Exception():
            return Fault.DEFECT  # it may be of the connection to this server only
        case _:
            return Fault.TIMED_OUT  # cancelled


def is_success(came: object) -> bool:
    """Whether what came of a send, an answer or an error, is a successful answer."""
    return not isinstance(came, Exception) and fault_in(came) is None


def model_fault(came: object) -> Fault | None:
    """The fault of the server or the model that an answer (`model_fault_in`) or an error (`model_fault_of_error`) tells of."""
    return model_fault_of_error(came) if isinstance(came, Exception) else model_fault_in(came)


def model_fault_in(answer: object) -> Fault | None:
    """The fault that an answer tells of, if it is the server's or the model's; None for a success, and for what its caller
    has done wrong or called off."""
    fault = fault_in(answer)
    if fault in _CALLERS_OWN or (fault is Fault.OTHER and not _is_servers_status(answer)):
        return None
    return fault


def model_fault_of_error(error: Exception) -> Fault | None:
    """The server's or the model's fault with whose error a send has ended; limits of the gateway are none of the model's faults."""
    if isinstance(error, ModelLoadFailed):
        return Fault.MODEL_MISSING
    if isinstance(error, QueryOfDeath):  # another model may well live under it
        return Fault.DEAD_STUB
    if isinstance(error, Overloaded):  # the model's queue in the gateway, where a slow version has its own
        return Fault.NOT_SENT
    fault = fault_of_error(error)
    return None if fault is Fault.OTHER and not isinstance(error, UpstreamFailed) else fault


def _is_servers_status(answer: object) -> bool:
    if isinstance(answer, HttpAnswer):
        return answer.status >= 500 or is_error_event(bytes(answer.body[:READ_BYTES]))
    return isinstance(answer, GrpcAnswer) and answer.code in _SERVERS_CODES


def recall_of(error: Exception | None) -> Recall | None:
    """The recall that a send has ended with, if it has."""
    return error.recall if isinstance(error, UpstreamUnavailable) else None


def fault_of_recall(cause: RecallCause) -> Fault:
    """The fault that a request has met which was taken back."""
    return _RECALLS[cause]


def _http_fault(status: int, text: bytes) -> Fault:
    match status:
        case 403:
            return Fault.RESTRICTED
        case 404:
            return Fault.MODEL_MISSING
        case 500 if dead_stub_model_in(text) is not None:
            return Fault.DEAD_STUB
        case 503:
            return _unavailable(text)
        case 400 | 499 if _CANCELLED_WORDS.search(text):
            return Fault.CANCELLED
        case 400 if is_error_event(text):
            return _unavailable(text) if dead_stub_model_in_event(text) is None else Fault.DEAD_STUB
        case _:
            return Fault.OTHER


def _grpc_fault(code: int, text: bytes) -> Fault:
    match code:
        case GrpcStatus.CANCELLED:
            return Fault.CANCELLED
        case GrpcStatus.DEADLINE_EXCEEDED:
            return Fault.EXPIRED_IN_QUEUE
        case GrpcStatus.NOT_FOUND:
            return Fault.MODEL_MISSING
        case GrpcStatus.INTERNAL if dead_stub_model_in(text) is not None:
            return Fault.DEAD_STUB
        case GrpcStatus.UNAVAILABLE:
            return _unavailable(text)
        case _:
            return Fault.OTHER


def _unavailable(text: bytes) -> Fault:
    found = _UNAVAILABLE_WORDS.search(text)
    return Fault.OTHER if found is None else _UNAVAILABLE[found[0]]
