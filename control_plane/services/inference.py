"""The path of one inference request, whichever door it came through.

Front door -> codec -> here -> adapter -> Triton. The door supplies how a request is read and sent (by the protocol it
came by, so that the answer stays byte for byte Triton's); this decides whether, where and how long, and records it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import TracebackType
from typing import Protocol, TypeVar

from control_plane.codec.http_message import HttpAnswer
from control_plane.codec.steps import Steps
from control_plane.domain.errors import ControlPlaneError, ErrorCode, PermissionDenied
from control_plane.domain.inference import Door, InferCall, Outcome
from control_plane.domain.principal import NOBODY, Principal
from control_plane.domain.route import Route
from control_plane.domain.scope import Right
from control_plane.domain.tensor import element_count
from control_plane.domain.usage import UsageEvent
from control_plane.policy.authorization import Need
from control_plane.ports import HttpStream, RequestRecorder, Upstream
from control_plane.services.admission import Permit
from control_plane.services.governance import Governance
from control_plane.services.servers import Servers
from control_plane.services.slices import in_slices

AnswerT = TypeVar("AnswerT")

SHARED_MEMORY_IS_OFF = "shared memory is switched off on this server; --allow-shared-memory switches it on"


class _DoorRequest(Protocol):
    """A request as a door holds it."""

    door: Door
    principal: Principal

    @property
    def timeout_s(self) -> float | None:
        """Seconds the caller gives; None leaves it to the default. Raises InvalidRequest."""

    def read(self) -> Steps[InferCall]:
        """Validate it, in steps if it is large. Raises InvalidRequest, UnparsableRequest, PayloadTooLarge, NotSupported."""

    def aim_at(self, model_name: str, model_version: str) -> None:
        """Let it go to this model instead of the one that it names, which is a route's name."""


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


_NEVER_RAN = frozenset((Outcome.UNAVAILABLE, Outcome.MODEL_NOT_FOUND))
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
        governance: Governance,
        default_timeout_s: float,
        allow_shared_memory: bool = False,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`now_s` is the loop's time, `today_s` seconds since 1970."""
        self._servers = servers
        self._recorder = recorder
        self._governance = governance
        self._default_timeout_s = default_timeout_s
        self._allow_shared_memory = allow_shared_memory
        self._now_s = now_s
        self._today_s = today_s
        self._in_flight = 0
        self._answered: set[str] = set()
        """Models that have answered, as many as there are; callers can make up any number of other names."""

    @property
    def in_flight(self) -> int:
        """Requests that have come and have not been answered."""
        return self._in_flight

    async def infer(self, request: InferRequest[AnswerT]) -> AnswerT:
        """Validate, choose a server, send, record. Cancelling it cancels what it awaits and counts as abandoned."""
        with self.begin(request.door, request.principal) as count:
            count.enter()
            timeout_s = await self._turn(await in_slices(request.read()), request, count)
            answer = await request.send(self._servers.pick(), timeout_s=timeout_s)
            count.outcome = request.outcome(answer)
            return answer

    async def generate(self, request: GenerateRequest) -> HttpAnswer | HttpStream:
        """As `infer`; an answer that comes piece by piece is recorded when it has ended, and must be closed."""
        with self.begin(request.door, request.principal) as count:
            count.enter()
            timeout_s = await self._turn(await in_slices(request.read()), request, count)
            answer = await request.stream(self._servers.pick(), timeout_s=timeout_s)
            count.outcome = request.outcome(answer)
            return answer if isinstance(answer, HttpAnswer) else _CountedStream(answer, count)

    def resolve(self, call: InferCall, principal: Principal) -> tuple[InferCall, Route | None]:
        """The call as it goes to Triton, and the route that it came by.

        Raises PermissionDenied: this caller may not call that, or this server takes no such request at all.
        """
        if call.uses_shared_memory and not self._allow_shared_memory:
            raise PermissionDenied(SHARED_MEMORY_IS_OFF)
        access = self._governance.access
        if principal is not NOBODY:
            access.require(principal, Need(Right.INFER, call.model_name))
        route = access.route(call.model_name)
        if route is None:
            return call, None
        return replace(call, model_name=route.model, model_version=call.model_version or route.version), route

    def refuse_early(self, door: Door, principal: Principal, name: str = "") -> None:
        """On its head, what would be refused when the rest has come; an empty name is one that only the rest tells.

        Raises PermissionDenied, LimitExceeded, and has then recorded it.
        """
        if principal is NOBODY:
            return
        try:
            self._governance.access.require(principal, Need(Right.INFER, name))
            self._governance.admission.look(principal.tenant)
        except ControlPlaneError:
            with self.begin(door, principal):
                raise

    def begin(self, door: Door, principal: Principal) -> Count:
        """Count a request as in flight from now on, and record and meter it when the `Count` ends."""
        self._in_flight += 1
        return Count(self, door, principal, self._now_s())

    def begin_stream(self, principal: Principal) -> Count:
        """The same for a stream, whose requests are metered each by itself."""
        self._in_flight += 1
        return Count(self, Door.GRPC_STREAM, principal, self._now_s(), is_metered=False)

    def begin_within_stream(self, principal: Principal) -> Count:
        """The same for one of a stream's requests; metrics count the stream."""
        return Count(self, Door.GRPC_STREAM, principal, self._now_s(), is_counted=False)

    async def turn(self, call: InferCall, count: Count, *, named: str, timeout_s: float) -> float:
        """Return when a call may go to Triton: the seconds that are left to it then. Raises Overloaded."""
        count.route_name, count.call = named, call
        deadline_s = self._now_s() + timeout_s
        assert count.permit is not None, "it has not been let in"
        await count.permit.turn(call.model_name, cost_units=self._governance.costs.estimate(call), deadline_s=deadline_s)
        count.sent_s = self._now_s()
        return deadline_s - count.sent_s

    async def _turn(self, named: InferCall, request: _DoorRequest, count: Count) -> float:
        """The seconds that the request has, from now on."""
        count.model_name = named.model_name
        call, route = self.resolve(named, request.principal)
        if route is not None:
            count.model_name = call.model_name
            request.aim_at(call.model_name, call.model_version)
        timeout_s = request.timeout_s
        if timeout_s is None:
            timeout_s = self._default_timeout_s if route is None or route.deadline_s is None else route.deadline_s
        return await self.turn(call, count, named=named.model_name, timeout_s=timeout_s)

    def _end(self, count: Count) -> None:
        ended_s = self._now_s()
        if count.permit is not None:
            count.permit.release()
        if count.is_counted:
            self._in_flight -= 1
            duration_s = ended_s - count.started_s
            self._recorder.record(model_name=count.model_name, door=count.door, outcome=count.outcome, duration_s=duration_s)
        if count.is_metered:
            self._governance.meter.record(self._event(count, ended_s))

    def _event(self, count: Count, ended_s: float) -> UsageEvent:
        """A name that no model has ever answered to is not kept, or callers could grow the table of usage at will."""
        call, costs = count.call, self._governance.costs
        if count.outcome is Outcome.ANSWERED:
            self._answered.add(count.model_name)
        reached = count.sent_s is not None and count.model_name in self._answered
        has_run = reached and count.outcome not in _NEVER_RAN
        return UsageEvent(
            ended_s=self._today_s(),
            tenant=count.principal.tenant,
            key_id=count.principal.key_id,
            route=count.route_name if reached else "",
            model=count.model_name if reached else "",
            door=count.door,
            outcome=count.outcome,
            duration_s=ended_s - count.started_s,
            rows=costs.rows(call) if reached and call is not None else 0,
            elements=sum(element_count(tensor.shape) for tensor in call.inputs) if call is not None else 0,
            compute_units=costs.charged(call, ended_s - (count.sent_s or ended_s)) if has_run and call is not None else 0.0,
        )


class Count:
    """A request under way, ended once: by `end`, or by the end of its `with` block, which an exception tells how it went."""

    __slots__ = (
        "_goes_on",
        "_service",
        "call",
        "door",
        "is_counted",
        "is_metered",
        "model_name",
        "outcome",
        "permit",
        "principal",
        "route_name",
        "sent_s",
        "started_s",
    )

    def __init__(
        self,
        service: InferenceService,
        door: Door,
        principal: Principal,
        started_s: float,
        *,
        is_counted: bool = True,
        is_metered: bool = True,
    ) -> None:
        self._service = service
        self._goes_on = False
        self.door = door
        self.principal = principal
        self.is_counted = is_counted
        self.is_metered = is_metered
        self.permit: Permit | None = None
        self.call: InferCall | None = None
        """Once it has been read and may go to Triton."""
        self.route_name = ""
        self.model_name = ""
        self.outcome = Outcome.FAILED
        self.started_s = started_s
        self.sent_s: float | None = None

    def __enter__(self) -> Count:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self.outcome = outcome_of(error)
        if not self._goes_on or error is not None:
            self._service._end(self)

    def enter(self) -> None:
        """Let it in, on what its tenant has left. Raises LimitExceeded."""
        self.permit = self._service._governance.admission.enter(self.principal.tenant)

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
