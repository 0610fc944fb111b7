"""The path of one inference request, whichever door it came through.

Front door -> codec -> here -> adapter -> Triton. The door supplies how a request is read and sent (by the protocol it
came by, so that the answer stays byte for byte Triton's); this decides whether, where and how long, and records it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, TypeVar

from control_plane.codec.http_message import HttpAnswer
from control_plane.codec.steps import Steps
from control_plane.domain.errors import ControlPlaneError, ErrorCode, PermissionDenied
from control_plane.domain.inference import Door, InferCall, Outcome
from control_plane.ports import HttpStream, RequestRecorder, Upstream
from control_plane.services.servers import Servers
from control_plane.services.slices import in_slices

AnswerT = TypeVar("AnswerT")

SHARED_MEMORY_IS_OFF = "shared memory is switched off on this server; --allow-shared-memory switches it on"


class _DoorRequest(Protocol):
    """A request as a door holds it."""

    door: Door

    @property
    def timeout_s(self) -> float | None:
        """Seconds the caller gives; None leaves it to the default. Raises InvalidRequest."""

    def read(self) -> Steps[InferCall]:
        """Validate it, in steps if it is large. Raises InvalidRequest, UnparsableRequest, PayloadTooLarge, NotSupported."""


class InferRequest(_DoorRequest, Protocol[AnswerT]):
    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[AnswerT]:
        """Send it on and return Triton's answer, good or bad. Raises UpstreamUnavailable, DeadlineExceeded."""

    def outcome(self, answer: AnswerT) -> Outcome:
        """What Triton's answer amounts to."""


class GenerateRequest(_DoorRequest, Protocol):
    """A request whose answer may come piece by piece; over HTTP only."""

    def stream(self, server: Upstream, *, timeout_s: float) -> Awaitable[HttpAnswer | HttpStream]:
        """As `InferRequest.send`."""

    def outcome(self, answer: HttpAnswer | HttpStream) -> Outcome:
        """What Triton's answer amounts to, once it has come to its end."""


_OUTCOMES = {
    ErrorCode.UPSTREAM_UNAVAILABLE: Outcome.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED: Outcome.DEADLINE_EXCEEDED,
}


class InferenceService:
    """Answers inference requests; one instance for all doors."""

    def __init__(
        self,
        *,
        servers: Servers,
        recorder: RequestRecorder,
        default_timeout_s: float,
        allow_shared_memory: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = servers
        self._recorder = recorder
        self._default_timeout_s = default_timeout_s
        self._allow_shared_memory = allow_shared_memory
        self._now_s = now_s
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """Requests that have come and have not been answered."""
        return self._in_flight

    async def infer(self, request: InferRequest[AnswerT]) -> AnswerT:
        """Validate, choose a server, send, record. Cancelling it cancels what it awaits and counts as abandoned."""
        with self.begin(request.door) as count:
            timeout_s = self._admit(await in_slices(request.read()), request, count)
            answer = await request.send(self._servers.pick(), timeout_s=timeout_s)
            count.outcome = request.outcome(answer)
            return answer

    async def generate(self, request: GenerateRequest) -> HttpAnswer | HttpStream:
        """As `infer`; an answer that comes piece by piece is recorded when it has ended, and must be closed."""
        with self.begin(request.door) as count:
            timeout_s = self._admit(await in_slices(request.read()), request, count)
            answer = await request.stream(self._servers.pick(), timeout_s=timeout_s)
            count.outcome = request.outcome(answer)
            return answer if isinstance(answer, HttpAnswer) else _CountedStream(answer, count)

    def check(self, call: InferCall) -> None:
        """Whether this server takes such a request at all. Raises PermissionDenied."""
        if call.uses_shared_memory and not self._allow_shared_memory:
            raise PermissionDenied(SHARED_MEMORY_IS_OFF)

    def begin(self, door: Door) -> Count:
        """Count a request as in flight from now on, and record it when the `Count` ends."""
        self._in_flight += 1
        return Count(self, door, self._now_s())

    def _admit(self, call: InferCall, request: _DoorRequest, count: Count) -> float:
        """The seconds that the request has."""
        count.model_name = call.model_name
        self.check(call)
        return self._default_timeout_s if request.timeout_s is None else request.timeout_s

    def _end(self, count: Count) -> None:
        self._in_flight -= 1
        duration_s = self._now_s() - count.started_s
        self._recorder.record(model_name=count.model_name, door=count.door, outcome=count.outcome, duration_s=duration_s)


class Count:
    """A request under way, ended once: by `end`, or by the end of its `with` block, which an exception tells how it went."""

    __slots__ = ("_goes_on", "_service", "door", "model_name", "outcome", "started_s")

    def __init__(self, service: InferenceService, door: Door, started_s: float) -> None:
        self._service = service
        self._goes_on = False
        self.door = door
        self.model_name = ""
        self.outcome = Outcome.FAILED
        self.started_s = started_s

    def __enter__(self) -> Count:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self.outcome = outcome_of(error)
        if not self._goes_on or error is not None:
            self._service._end(self)

    def go_on(self) -> None:
        """Let it be recorded by `end`, beyond its `with` block."""
        self._goes_on = True

    def end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._service._end(self)


class _CountedStream:
    """`ports.HttpStream` that records how it ended: closed before its end, its caller has left."""

    def __init__(self, stream: HttpStream, count: Count) -> None:
        self.status = stream.status
        self.head = stream.head
        self._stream = stream
        self._outcome_at_end, self._outcome = count.outcome, Outcome.ABANDONED
        self._count: Count | None = count
        count.go_on()

    async def receive(self) -> bytes | None:
        try:
            piece = await self._stream.receive()
        except BaseException as exc:
            self._outcome = outcome_of(exc)
            raise
        if piece is None:
            self._outcome = self._outcome_at_end
        return piece

    def close(self) -> None:
        self._stream.close()
        if self._count is not None:
            self._count.end(self._outcome)
            self._count = None


def outcome_of(error: BaseException) -> Outcome:
    """How a request ended that ended with `error`."""
    if isinstance(error, asyncio.CancelledError):
        return Outcome.ABANDONED
    if isinstance(error, ControlPlaneError):
        return _OUTCOMES.get(error.code, Outcome.REFUSED)
    return Outcome.FAILED
