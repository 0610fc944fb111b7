"""The path of one inference request, whichever door it came through.

Front door -> codec -> here -> adapter -> Triton. The door supplies how a request is read and sent (by the protocol it
came by, so that the answer stays byte for byte Triton's); this decides whether, where and how long, and records it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from control_plane.admission.admission import Permit
from control_plane.auth.domain.authorization import Need
from control_plane.cache.domain.cached_response import RepeatedRequest
from control_plane.core.errors import ControlPlaneError, PermissionDenied
from control_plane.core.infer_call import Door, InferCall, Outcome
from control_plane.core.principal import NOBODY, Principal
from control_plane.core.scope import Right
from control_plane.core.steps import Steps
from control_plane.inference.cached_inference import CachedInference, KeepableRequest
from control_plane.inference.catalogue import Catalogue
from control_plane.inference.governance import Governance
from control_plane.inference.known_models import KnownModels
from control_plane.inference.repeated_hits import KnownHits
from control_plane.inference.run_steps import in_slices
from control_plane.inference.running_request import UNSEEN, RunningRequest, Source, ToldOf
from control_plane.inference.running_requests import RunningRequests, untold
from control_plane.objects.domain.route import Route
from control_plane.protocols.http1 import HttpAnswer
from control_plane.telemetry.ports import RequestRecorder
from control_plane.triton.ports import HttpStream, Upstream
from control_plane.triton.servers import OneServer, Servers

AnswerT = TypeVar("AnswerT")

SHARED_MEMORY_IS_OFF = "shared memory is switched off on this server; --allow-shared-memory switches it on"


class _DoorRequest(Source, Protocol):
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


class ServerRequest(Protocol[AnswerT]):
    """One that may go to a server."""

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[AnswerT]:
        """Send it on and return Triton's answer, good or bad. Raises UpstreamUnavailable, DeadlineExceeded."""

    def outcome(self, answer: AnswerT) -> Outcome:
        """What Triton's answer amounts to."""


class InferRequest(_DoorRequest, KeepableRequest[AnswerT], ServerRequest[AnswerT], Protocol[AnswerT]):
    """A request for one answer, which may be kept."""


class GenerateRequest(_DoorRequest, Protocol):
    """A request whose answer may come piece by piece; over HTTP only."""

    def stream(self, server: Upstream, *, timeout_s: float) -> Awaitable[HttpAnswer | HttpStream]:
        """As `InferRequest.send`."""

    def outcome(self, answer: HttpAnswer | HttpStream) -> Outcome:
        """What Triton's answer amounts to, once it has come to its end."""


class Dispatch(Protocol):
    """Chooses servers: `triton/servers.OneServer`, or in a fleet `fleet/routing/dispatch`."""

    @property
    def catalogue(self) -> Catalogue | None:
        """What is told of all servers together; None: there is one, which tells it."""

    def send(
        self, request: ServerRequest[AnswerT], call: InferCall, *, timeout_s: float, running: RunningRequest | None = None
    ) -> Awaitable[AnswerT]:
        """Send it where it should go, when its model is loaded there; `running` tells what it costs and who asks.

        Raises ModelNotFound, Overloaded, and what `send` does.
        """

    def stream(
        self, request: GenerateRequest, call: InferCall, *, timeout_s: float, running: RunningRequest | None = None
    ) -> Awaitable[HttpAnswer | HttpStream]:
        """The same for an answer in pieces, which keeps its place until it is closed."""

    def server_for(
        self, call: InferCall, *, timeout_s: float, running: RunningRequest | None = None
    ) -> AbstractAsyncContextManager[Upstream]:
        """The same for who sends by itself. Raises as `send`."""

    async def reading(self, model: str, *, timeout_s: float) -> Upstream:
        """A server that can tell of a model. Raises as `send`."""

    async def ready(self) -> set[str]:
        """The models that are loaded now, somewhere. Raises UpstreamUnavailable, UpstreamFailed, DeadlineExceeded."""


class InferenceService:
    """Answers inference requests; one instance for all doors."""

    def __init__(
        self,
        *,
        servers: Servers,
        recorder: RequestRecorder,
        governance: Governance,
        default_timeout_s: float,
        cached: CachedInference | None = None,
        dispatch: Dispatch | None = None,
        models: KnownModels | None = None,
        told_of: ToldOf = untold,
        allow_shared_memory: bool = False,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`now_s` is the loop's time, `today_s` seconds since 1970. Without `cached` everything is computed.

        `dispatch` chooses among servers where there are several, or more models than memory; without it there is one. `models` are those
        that exist; without it they are known by their answers only. `told_of` says for the request log what errors are to callers.
        """
        self.models = models or KnownModels(servers)
        self.running = RunningRequests(recorder, governance, self.models, told_of=told_of, now_s=now_s, today_s=today_s)
        self._known_hits: dict[Door, KnownHits[Any, Any]] = {}
        self._governance = governance
        self._cached = cached
        self.dispatch: Dispatch = dispatch or OneServer(servers)
        """Where requests go, and calls that only read."""
        self._default_timeout_s = default_timeout_s
        self._allow_shared_memory = allow_shared_memory
        self._now_s = now_s
        self._today_s = today_s

    @property
    def in_flight(self) -> int:
        """Requests that have come and have not been answered."""
        return self.running.in_flight

    async def infer(self, request: InferRequest[AnswerT]) -> AnswerT:
        """Validate, look for an answer that is there, else choose a server and send; record.

        Cancelling it cancels what it awaits, unless others wait for the same, and counts as abandoned.
        """
        with self.running.begin(request.door, request.principal, request) as running:
            if not running.enter():
                await running.enter_when_told()
            route = self._understand(await in_slices(request.read()), request, running)
            timeout_s = self._timeout_s(request, route)
            scope = None if self._cached is None else self._cached.scope(running.model_name, route, request.principal.tenant)
            running.is_repeatable = scope is not None
            if self._cached is None or scope is None:
                timeout_s = await self.turn(running, timeout_s=timeout_s)
                answer = await self.dispatch.send(request, call_of(running), timeout_s=timeout_s, running=running)
            else:
                answer = await self._cached.infer(request, running, scope, compute=self._compute, timeout_s=timeout_s)
            running.answered(request.outcome(answer), answer)
            return answer

    def answer_again(self, door: Door, principal: Principal, repeated: RepeatedRequest[AnswerT], source: Source = UNSEEN) -> AnswerT | None:
        """The answer to a request that came before, byte for byte, if this process has it; None: `infer` it.

        Raises LimitExceeded, and has then recorded it.
        """
        if self._cached is None:
            return None
        try:
            call, route = self.resolve(repeated.call, principal)
        except PermissionDenied:
            return None  # and let that be recorded there
        kept = self._cached.look_again(repeated, call, route, principal.tenant)
        if kept is None:
            return None
        if not self.running.hit(door, principal, call, named=repeated.call, source=source):
            return None
        self._cached.count_hit(call.model_name)
        return repeated.answer(kept)

    def known_hits(self, door: Door) -> KnownHits[Any, Any]:
        """Of that door; to be made once."""
        hits = self._known_hits[door] = KnownHits(
            door, self.running, None if self._cached is None else self._cached.cache, today_s=self._today_s
        )
        return hits

    def settle(self) -> None:
        """Count what has not been counted yet."""
        for hits in self._known_hits.values():
            hits.settle()

    async def generate(self, request: GenerateRequest) -> HttpAnswer | HttpStream:
        """As `infer`, never from a cache; an answer that comes piece by piece is recorded when it has ended, and must be closed."""
        with self.running.begin(request.door, request.principal, request) as running:
            if not running.enter():
                await running.enter_when_told()
            route = self._understand(await in_slices(request.read()), request, running)
            timeout_s = await self.turn(running, timeout_s=self._timeout_s(request, route))
            answer = await self.dispatch.stream(request, call_of(running), timeout_s=timeout_s, running=running)
            running.answered(request.outcome(answer), answer)
            return answer if isinstance(answer, HttpAnswer) else _RecordedStream(answer, running)

    def resolve(self, call: InferCall, principal: Principal) -> tuple[InferCall, Route | None]:
        """The call as it goes to Triton, and the route that it came by.

        Raises PermissionDenied: this caller may not call that, or this server takes no such request at all.
        """
        if call.uses_shared_memory and not self._allow_shared_memory:
            raise PermissionDenied(SHARED_MEMORY_IS_OFF)
        access = self._governance.access
        route = access.route(call.model_name)
        if principal is not NOBODY:
            access.require_inference(principal, call.model_name, route)
        if route is None:
            return call, None
        return replace(call, model_name=route.model, model_version=call.model_version or route.version), route

    def refuse_early(self, door: Door, principal: Principal, source: Source = UNSEEN) -> None:
        """On its head, what would be refused when the rest has come, of which the name may be a part.

        Raises PermissionDenied, LimitExceeded, and has then recorded it.
        """
        if principal is NOBODY:
            return
        try:
            self._governance.access.require(principal, Need(Right.INFER, source.name_seen()))
            self._governance.admission.look(principal.tenant)
        except ControlPlaneError:
            with self.running.begin(door, principal, source):
                raise

    async def turn(self, running: RunningRequest, *, timeout_s: float) -> float:
        """Return when it may go to Triton: the seconds that are left to it then. Raises Overloaded."""
        assert running.permit is not None, "it has not been let in"
        return await self._turn(running, running.permit, timeout_s)

    async def _turn(self, running: RunningRequest, permit: Permit, timeout_s: float) -> float:
        deadline_s = self._now_s() + timeout_s
        await permit.turn(self.models.name_of(running.model_name), cost_units=running.expected_units, deadline_s=deadline_s)
        return deadline_s - self._now_s()

    async def _compute(self, request: InferRequest[AnswerT], running: RunningRequest, permit: Permit, timeout_s: float) -> AnswerT:
        timeout_s = await self._turn(running, permit, timeout_s)
        return await self.dispatch.send(request, call_of(running), timeout_s=timeout_s, running=running)

    def _understand(self, named: InferCall, request: _DoorRequest, running: RunningRequest) -> Route | None:
        """What it asks for, and by which route."""
        running.model_name = named.model_name
        call, route = self.resolve(named, request.principal)
        if route is not None:
            request.aim_at(call.model_name, call.model_version)
        running.understood(call, named=named)
        return route

    def _timeout_s(self, request: _DoorRequest, route: Route | None) -> float:
        timeout_s = request.timeout_s
        if timeout_s is not None:
            return timeout_s
        return self._default_timeout_s if route is None or route.deadline_s is None else route.deadline_s


def call_of(running: RunningRequest) -> InferCall:
    """What it asks for, as it goes to Triton."""
    assert running.call is not None, "it has not been read"
    return running.call


class _RecordedStream:
    """`triton/ports.HttpStream` that records how it ended: closed before its end, its caller has left."""

    def __init__(self, stream: HttpStream, running: RunningRequest) -> None:
        self.status = stream.status
        self.head = stream.head
        self._stream = stream
        self._outcome_at_end, running.outcome = running.outcome, Outcome.ABANDONED
        self._running: RunningRequest | None = running
        running.go_on()

    async def receive(self) -> bytes | None:
        try:
            piece = await self._stream.receive()
        except BaseException as exc:
            if self._running is not None:
                self._running.break_off(exc)
            raise
        if piece is None and self._running is not None:
            self._running.outcome = self._outcome_at_end
        return piece

    def close(self) -> None:
        self._stream.close()
        if self._running is not None:
            self._running.end()
            self._running = None
