"""Port to the application: the handlers of gRPC methods, by which calls (`frontends/grpc/call`) are answered."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from control_plane.core.errors import DEFECT_TEXT, ControlPlaneError
from control_plane.core.principal import Principal
from control_plane.frontends.common.status import STATUS, advice_of, message_of
from control_plane.frontends.grpc.message_stream import MessageStream
from control_plane.protocols.grpc import GrpcAnswer, GrpcHead, GrpcStatus, status_answer
from control_plane.protocols.http2.stream import WholeAnswer, WholeCall
from control_plane.triton.ports import GrpcCall

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GrpcHandler:
    """Handler of one gRPC method; either `unary` or `stream` is set."""

    unary: Callable[[GrpcCall], Awaitable[GrpcAnswer]] | None = None
    admit: Callable[[Principal], None] | None = None
    """Called before a large message is received. Raises the ControlPlaneError that the call would be refused
    with."""
    stream: Callable[[GrpcHead, MessageStream, Principal], Awaitable[GrpcAnswer]] | None = None
    """Runs a streaming call; returns the status that ends it."""
    late: Callable[[Principal, float, int], ControlPlaneError] | None = None
    """Notes calls that were not read in time, with the seconds until their deadline and how many they are, and returns the error for
    their callers. None: such calls are answered as others, which cost little."""
    max_bytes: int | None = None
    """Largest message of the method; None: as large as any body."""


VerbatimAnswers = Callable[[WholeCall, float], WholeAnswer | None]
"""The answer to a call that has waited for so many seconds; None: it has to be parsed."""


class GrpcApplication(Protocol):
    """Port to the application that answers calls."""

    def handler_for(self, head: GrpcHead, *, peer: str, peer_is_local: bool) -> tuple[GrpcHandler, Principal]:
        """The handler and the caller; raises a ControlPlaneError for an unknown method or a caller without the right."""

    def verbatim_answers(self, *, max_header_bytes: int) -> VerbatimAnswers:
        """The verbatim cache as one connection asks it."""


def failure(error: Exception) -> GrpcAnswer:
    """Render an error as a gRPC status, with advice as metadata. Anything but a ControlPlaneError is a defect: it is
    logged, and the caller is not told its text."""
    if not isinstance(error, ControlPlaneError):
        _log.error("a call failed in the gateway; this is a defect", exc_info=error)
        return status_answer(GrpcStatus.INTERNAL, DEFECT_TEXT)
    return status_answer(
        STATUS[error.code].grpc.value[0], message_of(error), tuple((name.lower(), value) for name, value in advice_of(error))
    )
