"""One attempt to send a request to a server, and its result; both dispatchers use it."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from control_plane.core.infer_call import InferCall
from control_plane.inference.retries.faults import Fault, fault_in, fault_of_error
from control_plane.triton.ports import Upstream

AnswerT = TypeVar("AnswerT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)


class Send(Protocol[AnswerT_co]):
    """Sends a request to the server that it is given."""

    def __call__(self, server: Upstream, /, *, timeout_s: float) -> Awaitable[AnswerT_co]: ...


class RepeatableRequest(Protocol):
    """The part of `AuthorizedRequest` that tells whether it may be computed twice."""

    is_repeatable: bool


def is_repeatable(call: InferCall, running: RepeatableRequest | None) -> bool:
    """Whether computing a request twice does no harm. One of a sequence changes its state."""
    return running is not None and running.is_repeatable and not call.sequence_id


@dataclass(slots=True)
class Attempt(Generic[AnswerT]):
    """One send of a request: the answer, or the error, and its fault."""

    answer: AnswerT | None = None
    error: Exception | None = None
    fault: Fault | None = Fault.TIMED_OUT
    """Assumed until an answer or an error comes: a cancellation ends the send with neither."""

    async def run(self, send: Send[AnswerT], server: Upstream, *, timeout_s: float) -> None:
        """Send, and keep what comes of it."""
        try:
            self.answer = await send(server, timeout_s=timeout_s)
            self.fault = fault_in(self.answer)
        except Exception as exc:
            self.error, self.fault = exc, fault_of_error(exc)

    def result(self) -> AnswerT:
        """Return the answer, or raise the error; to be called once."""
        error, self.error = self.error, None  # it would keep itself alive, by its traceback
        if error is not None:
            raise error
        answer: AnswerT = self.answer  # type: ignore[assignment]
        return answer
