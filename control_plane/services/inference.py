"""The path of one inference request, whichever door it came through.

Front door -> codec -> here -> adapter -> Triton. The door supplies how a request is read and sent (by the protocol it
came by, so that the answer stays byte for byte Triton's); this decides whether, where and how long, and records it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from control_plane.domain.errors import ControlPlaneError, ErrorCode
from control_plane.domain.inference import Door, InferCall, Outcome
from control_plane.ports import RequestRecorder, Upstream
from control_plane.services.servers import Servers

AnswerT = TypeVar("AnswerT")


class InferRequest(Protocol[AnswerT]):
    """A request as a door holds it."""

    door: Door

    @property
    def timeout_s(self) -> float | None:
        """Seconds the caller gives; None leaves it to the default. Raises InvalidRequest."""

    def read(self) -> InferCall:
        """Validate it. Raises InvalidRequest, UnparsableRequest, PayloadTooLarge, NotSupported."""

    async def send(self, server: Upstream, *, timeout_s: float) -> AnswerT:
        """Send it on and return Triton's answer, good or bad. Raises UpstreamUnavailable, DeadlineExceeded."""

    def outcome(self, answer: AnswerT) -> Outcome:
        """What Triton's answer amounts to."""


_OUTCOMES = {
    ErrorCode.UPSTREAM_UNAVAILABLE: Outcome.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED: Outcome.DEADLINE_EXCEEDED,
}


class InferenceService:
    """Answers inference requests; one instance for all doors."""

    def __init__(
        self, *, servers: Servers, recorder: RequestRecorder, default_timeout_s: float, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._servers = servers
        self._recorder = recorder
        self._default_timeout_s = default_timeout_s
        self._now_s = now_s
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """Requests that have come and have not been answered."""
        return self._in_flight

    async def infer(self, request: InferRequest[AnswerT]) -> AnswerT:
        """Validate, choose a server, send, record. Cancelling it cancels what it awaits and counts as abandoned."""
        started_s = self._now_s()
        self._in_flight += 1
        outcome, model_name = Outcome.FAILED, ""
        try:
            call = request.read()
            model_name = call.model_name
            timeout_s = self._default_timeout_s if request.timeout_s is None else request.timeout_s
            answer = await request.send(self._servers.pick(), timeout_s=timeout_s)
            outcome = request.outcome(answer)
            return answer
        except asyncio.CancelledError:
            outcome = Outcome.ABANDONED
            raise
        except ControlPlaneError as exc:
            outcome = _OUTCOMES.get(exc.code, Outcome.REFUSED)
            raise
        finally:
            self._in_flight -= 1
            self._recorder.record(model_name=model_name, door=request.door, outcome=outcome, duration_s=self._now_s() - started_s)
