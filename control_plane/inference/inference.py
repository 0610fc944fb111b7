"""The path of one inference request, whichever frontend received it.

Frontend -> protocol codec -> `InferenceService` -> upstream adapter -> Triton. The frontend supplies how a
request is read and sent: in the protocol it came by, so that the answer stays byte for byte Triton's. This
module decides whether the request may run, on which server and for how long, and records how it ended. It
must know no wire format.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from control_plane.admission.permit import Permit
from control_plane.auth.domain.authorization import Need
from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.errors import ControlPlaneError, LimitExceeded, Overloaded, PermissionDenied
from control_plane.core.infer_call import Frontend, InferCall
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.core.scope import Right
from control_plane.inference.caching.cached_inference import CachedInference
from control_plane.inference.caching.verbatim_cache import VerbatimCaches
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.inference.dispatch.region_failover import RegionFailover
from control_plane.inference.dispatch.region_streams import StreamableOn
from control_plane.inference.dispatch.single_server import SingleServerDispatch
from control_plane.inference.governance import Governance, Meter
from control_plane.inference.in_flight.recorded_stream import RecordedStream
from control_plane.inference.in_flight.running_request import AdmittedRequest, AuthorizedRequest, ClientStatusOf
from control_plane.inference.in_flight.running_requests import RunningRequests, unknown_client_status
from control_plane.inference.in_flight.unparsed_request import UNSEEN, UnparsedRequest
from control_plane.inference.model_configuration.classes import Classes
from control_plane.inference.model_configuration.sequence_types import SequenceTypes
from control_plane.inference.model_configuration.time_left import TimeLeft
from control_plane.inference.model_names import ModelNames
from control_plane.inference.requests import FrontendRequest, GenerateRequest, InferRequest
from control_plane.inference.routes.arm_observations import ArmObservations
from control_plane.inference.routes.budget_dial import AdmissionForecast, BudgetDial
from control_plane.inference.routes.fallback import TargetFallback
from control_plane.inference.routes.shadowing import Shadow
from control_plane.inference.routes.targets import Arm, Assignee, RouteTargets
from control_plane.inference.sequence_starts import SequenceStarts
from control_plane.inference.traced_request import traced
from control_plane.objects.domain.route import Route, timeout_s_of
from control_plane.protocols.http1 import HttpAnswer
from control_plane.telemetry.ports import RequestRecorder
from control_plane.telemetry.tracing import Sampler
from control_plane.triton.ports import HttpStream
from control_plane.triton.servers import Servers

AnswerT = TypeVar("AnswerT")

SHARED_MEMORY_IS_OFF = "shared memory is switched off on this server; --allow-shared-memory switches it on"


class InferenceService:
    """Application service for inference requests: one instance, shared by all frontends of a process."""

    def __init__(
        self,
        *,
        servers: Servers,
        recorder: RequestRecorder,
        governance: Governance,
        default_timeout_s: float,
        cached: CachedInference | None = None,
        dispatch: Dispatch | None = None,
        models: ModelNames | None = None,
        client_status_of: ClientStatusOf = unknown_client_status,
        allow_shared_memory: bool = False,
        tracer: Sampler | None = None,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`now_s` is the loop's time, `today_s` seconds since 1970.

        Without `cached` every request is computed.

        `dispatch` routes requests in a fleet; without it there is one server, with all models loaded.
        `models` holds the names of existing models; without it a name is learned only from an answer.
        `client_status_of` gives the status and text that a caller gets for an error, for the request log.
        """
        self.models = models or ModelNames(servers)
        self.running = RunningRequests(recorder, governance, self.models, client_status_of=client_status_of, now_s=now_s, today_s=today_s)
        self._governance = governance
        self.observations = ArmObservations(governance.access)
        """What became of requests that a rollout has assigned, for the gateway to judge."""
        self.shadow: Shadow | None = None
        """Copies answered requests to another model; None where nothing is copied."""
        self.tracer = tracer
        """Samples requests to make spans of; None where none are made."""
        self.region_failover: RegionFailover | None = None
        """Has other regions compute what this one cannot; None where there are no others."""
        self._cached = cached
        self.verbatim = VerbatimCaches(self.running, None if cached is None else cached.cache, today_s=today_s)
        self.dispatch: Dispatch = dispatch or SingleServerDispatch(servers, now_s=now_s)
        """Routes inference requests, and calls that only read metadata."""
        self.dial = BudgetDial(AdmissionForecast(governance, self.models, self.dispatch.ready_in_s))
        self._targets = RouteTargets(governance.access, self.dial)
        self.fallback = TargetFallback(self.observations, self.dial, self.dispatch.retries, now_s=now_s)
        self.classes = Classes(self.dispatch)
        self.sequence_types = SequenceTypes(self.dispatch)
        self._sequence_starts = SequenceStarts()
        self.time_left: TimeLeft | None = None
        """Tells models how much time requests have left; None where none is told."""
        self.dispatch.retries.processes = lambda: governance.admission.processes
        self._default_timeout_s = default_timeout_s
        self._allow_shared_memory = allow_shared_memory
        self._now_s = now_s
        self._today_s = today_s

    def metered_by(self, meter: Meter) -> InferenceService:
        """Return this service with another meter for its requests; cheap enough for one request."""
        own = copy(self)
        own.running = self.running.metered_by(meter)
        return own

    def governed_by(self, governance: Governance) -> InferenceService:
        """Return this service for requests that are admitted otherwise, as jobs' are. Rollouts, budgets and regions know of these, too;
        none is copied to other models, and no model is told how much time they have left."""
        own = copy(self)
        own._governance, own.running = governance, self.running.governed_by(governance)
        own.shadow = own.time_left = None
        return own

    @property
    def in_flight(self) -> int:
        """The number of requests that have arrived and have not been answered."""
        return self.running.in_flight

    async def infer(self, request: InferRequest[AnswerT]) -> AnswerT:
        """Admit and validate a request, answer it from the cache or from a server, and record how it ended.

        Cancelling it cancels the computation, unless other requests wait for the same one, and counts as
        ABANDONED.

        Raises:
            LimitExceeded, Overloaded, PermissionDenied, InvalidRequest, UnparsableRequest, PayloadTooLarge,
            NotSupported, ModelNotFound, DeadlineExceeded, UpstreamUnavailable.
        """
        with self.running.begin(request.frontend, request.principal, request) as begun:
            if self.tracer is not None:
                request = traced(self.tracer, request, begun)
            # Admission comes before parsing: a caller over its limits must not cost the time to read its body.
            admitted = begun.admit() or await begun.admit_when_synced()
            parsed = request.read_at_once()
            if parsed is None:
                parsed = await run_in_steps(request.read())
            running, route, arm, timeout_s = self._authorize(parsed, request, admitted)
            if self.region_failover is not None:
                # Before it is asked for here: while no server answers it leaves at once.
                running.is_repeatable = self.is_repeatable(running.model_name, route if arm is None else arm.route)
                here = partial(self.ask, request, running, route) if arm is None else partial(self._ask_arm, request, running, arm)
                answer = await self.region_failover.answer(request, running, timeout_s, here)
            elif arm is None:
                answer = await self.ask(request, running, route, timeout_s)
            else:
                answer = await self._ask_arm(request, running, arm, timeout_s)
            if route is not None and (arm is None or arm.is_stable) and self.shadow is not None and not running.region:
                self.shadow.offer(route, request, running, answer)
            running.answered(request.outcome(answer), answer)
            return answer

    def ask(self, request: InferRequest[AnswerT], running: AuthorizedRequest, route: Route | None, timeout_s: float) -> Awaitable[AnswerT]:
        """Answer a request from the cache or from a server."""
        # No coroutine of its own: every inference would be passed through it.
        scope = None if self._cached is None else self._cached.cache.scope(running.model_name, route, running.principal.tenant)
        running.is_repeatable = scope is not None or self.is_repeatable(running.model_name, route)
        if self._cached is not None and scope is not None:
            return self._cached.infer(request, running, scope, compute=self._compute, timeout_s=timeout_s)
        is_timed = timeout_s != self._default_timeout_s and self.time_left is not None and self.time_left.may_be_wanted(running.model_name)
        is_special = is_timed or running.call.classified or running.call.sequence_id
        if is_special or not self._try_acquire_slot(running, running.permit, timeout_s):
            return self._compute(request, running, running.permit, timeout_s)
        request.slot = running.permit
        return self.dispatch.send(request, running.call, timeout_s=timeout_s, running=running)

    async def _ask_arm(self, request: InferRequest[AnswerT], running: AuthorizedRequest, arm: Arm, timeout_s: float) -> AnswerT:
        """Answer a request that a route with targets has assigned; the route's own model stands in for one that fails."""
        ask, divert = partial(self.ask, request, running, arm.route), partial(self._divert, request, running, arm)
        return request.with_model(await self.fallback.answer(arm, running, self._now_s() + timeout_s, ask=ask, divert=divert))

    async def _divert(self, request: FrontendRequest, running: AuthorizedRequest, arm: Arm, left_s: float) -> float:
        """Turn a request that a target has failed to the route's own model; see `fallback.Divert`."""
        request.readdress(arm.stable.model_name, arm.stable.model_version)
        request.choose(replace(arm, call=arm.stable).name)
        running.divert(arm.stable)
        return left_s

    def is_repeatable(self, model: str, route: Route | None) -> bool:
        """Whether computing a request to the model, by this route if any, twice does no harm."""
        if route is not None and route.is_repeatable:
            return True
        if self._cached is not None and self._cached.cache.is_repeatable(model, route):
            return True
        return (catalogue := self.dispatch.catalogue) is not None and catalogue.is_repeatable(model)

    async def generate(self, request: GenerateRequest) -> HttpAnswer | RecordedStream:
        """Answer a request to the generate extension as `infer` does, but never from the cache.

        A streamed answer is recorded when it ends, and must be closed.
        """
        with self.running.begin(request.frontend, request.principal, request) as begun:
            if self.tracer is not None:
                request = traced(self.tracer, request, begun)
            admitted = begun.admit() or await begun.admit_when_synced()
            parsed = request.read_at_once()
            if parsed is None:
                parsed = await run_in_steps(request.read())
            running, route, arm, timeout_s = self._authorize(parsed, request, admitted)
            here = partial(self._stream_here, request, running, route, arm)
            if self.region_failover is None:
                answer = await here(timeout_s)
            else:
                running.is_repeatable = self.is_repeatable(running.model_name, route if arm is None else arm.route)
                answer = await self.region_failover.answer(StreamableOn(request), running, timeout_s, here)
            running.answered(request.outcome(answer), answer)
            # Another region names the model itself.
            head = answer.head if arm is None or running.region else request.head_with_model(answer.head)
            if isinstance(answer, HttpAnswer):
                return answer if head is answer.head else HttpAnswer(answer.status, head, answer.body)
            return RecordedStream(answer, running, head, is_whole=request.sends_whole)

    async def _stream_here(
        self, request: GenerateRequest, running: AuthorizedRequest, route: Route | None, arm: Arm | None, timeout_s: float
    ) -> HttpAnswer | HttpStream:
        """Have a server of this region begin an answer; for a route with targets as `_ask_arm` does."""
        if not self._try_acquire_slot(running, running.permit, timeout_s):
            timeout_s = await self.wait_for_slot(running, running.permit, timeout_s)
        if arm is None:
            return await self._begin_stream(request, running, route, timeout_s)
        ask, divert = partial(self._begin_stream, request, running, route), partial(self._divert_stream, request, running, arm)
        return await self.fallback.answer(arm, running, self._now_s() + timeout_s, ask=ask, divert=divert)

    async def _divert_stream(self, request: GenerateRequest, running: AuthorizedRequest, arm: Arm, left_s: float) -> float:
        """Turn a request as `_divert` does, and wait for its slot at the route's own model."""
        await self._divert(request, running, arm, left_s)
        return await self.wait_for_slot(running, running.permit, left_s)

    def _begin_stream(
        self, request: GenerateRequest, running: AuthorizedRequest, route: Route | None, timeout_s: float
    ) -> Awaitable[HttpAnswer | HttpStream]:
        request.slot = running.permit
        running.is_repeatable = self.is_repeatable(running.model_name, route)
        return self.dispatch.stream(request, running.call, timeout_s=timeout_s, running=running)

    def resolve(self, call: InferCall, principal: Principal, request: Assignee) -> tuple[InferCall, Route | None, Arm | None]:
        """Resolve a route's name: the call as it goes to Triton, the route (None: the name is a model's), and the choice
        among its targets (None: it has none).

        Raises PermissionDenied: the caller may not call that model, or shared memory is switched off. InvalidRequest: it
        asks for a target that the route does not have.
        """
        if call.uses_shared_memory and not self._allow_shared_memory:
            raise PermissionDenied(SHARED_MEMORY_IS_OFF)
        access = self._governance.access
        route = access.route(call.model_name)
        if principal is not ANONYMOUS:
            access.require_inference(principal, call.model_name, route)
        if route is None:
            return call, None, None
        if route.targets or route.faster or (call.sequence_id and self._targets.remembers(route, call, principal.tenant)):
            arm = self._targets.choose(route, call, principal, request)
            return arm.call, route, arm
        return replace(call, model_name=route.model, model_version=call.model_version or route.version), route, None

    def refuse_by_head(self, frontend: Frontend, principal: Principal, unparsed: UnparsedRequest = UNSEEN) -> None:
        """Refuse a request by its head alone, so that its body need not be read; the model's name may be in
        the body.

        Raises PermissionDenied, LimitExceeded, after recording the refused request.
        """
        if principal is ANONYMOUS:
            return
        try:
            self._governance.access.require(principal, Need(Right.INFER, unparsed.name_seen()))
            self._governance.admission.check(principal.tenant)
        except ControlPlaneError:
            with self.running.begin(frontend, principal, unparsed):
                raise

    async def require_harmless(self, call: InferCall, timeout_s: float) -> float:
        """Require that Triton survives a call, as it goes there; return the seconds that are left of `timeout_s`.

        Raises InvalidRequest, ModelNotFound, UpstreamUnavailable, UpstreamFailed, DeadlineExceeded.
        """
        if call.classified:
            timeout_s = await self.classes.require(call, timeout_s=timeout_s)
        if call.sequence_id:
            deadline_s = self._now_s() + timeout_s
            await self.sequence_types.require(call, timeout_s=timeout_s)
            timeout_s = deadline_s - self._now_s()
        return timeout_s

    async def require_model(self, name: str) -> None:
        """Require that there is a model of this name, loaded or not, or a route to one. Raises ModelNotFound, in Triton's words."""
        route = self._governance.access.route(name)
        await self.models.require_any((name,) if route is None else route.models)

    async def acquire_slot(self, running: AuthorizedRequest, *, timeout_s: float) -> float:
        """Wait for the model's in-flight slot, and before for the start of its sequence; return the seconds that are left of
        `timeout_s`.

        Raises DeadlineExceeded, LimitExceeded, Overloaded.
        """
        if running.call.sequence_id:
            timeout_s = await self._wait_for_sequence_start(running.call, running.permit, timeout_s)
        return await self.wait_for_slot(running, running.permit, timeout_s)

    async def _wait_for_sequence_start(self, call: InferCall, permit: Permit, timeout_s: float) -> float:
        """Wait for the start of a request's sequence, unless the request is that start; return the seconds that are left of
        `timeout_s`."""
        deadline_s, batching = self._now_s() + timeout_s, list[str]()
        with suppress(ControlPlaneError):  # `require_harmless` says it where the request is sent
            batching = await self.sequence_types.require(call, timeout_s=timeout_s)
        await self._sequence_starts.queue(call, batching, permit, deadline_s)
        return deadline_s - self._now_s()

    async def wait_for_slot(
        self, running: AuthorizedRequest, permit: Permit, timeout_s: float, request: InferRequest[Any] | None = None
    ) -> float:
        """Wait for a slot at the request's model, and return the seconds that are left of `timeout_s`. With `request` a refusal that
        holds for equal ones is kept for them.

        Raises DeadlineExceeded, LimitExceeded, Overloaded.
        """
        began_s, model = self._now_s(), self.models.name_of(running.model_name)
        deadline_s = began_s + timeout_s
        try:
            await permit.acquire_slot(model, cost_units=running.expected_units, deadline_s=deadline_s)
        except (Overloaded, LimitExceeded) as exc:
            # What waits for the model's load leaves no sooner than when it is loaded.
            exc.retry_after_s = max(exc.retry_after_s or 0.0, self.dispatch.ready_in_s(running.model_name))
            if request is not None and isinstance(exc, Overloaded) and self._refusal_holds_for_equals(running):
                request.keep_refusal(running.call, exc)
            raise
        finally:
            if running.trace is not None:
                running.trace.waited("queue", began_s)
        return deadline_s - self._now_s()

    def _try_acquire_slot(self, running: AuthorizedRequest, permit: Permit, timeout_s: float) -> bool:
        """Acquire the slot without a wait, as most requests do; False: `wait_for_slot` has to."""
        now_s = self._now_s()
        model = self.models.name_of(running.model_name)
        return permit.try_acquire_slot(model, cost_units=running.expected_units, deadline_s=now_s + timeout_s, now_s=now_s)

    async def _compute(self, request: InferRequest[AnswerT], running: AuthorizedRequest, permit: Permit, timeout_s: float) -> AnswerT:
        call = running.call
        if call.classified or call.sequence_id:
            timeout_s = await self.require_harmless(call, timeout_s)
        if call.sequence_id:
            timeout_s = await self._wait_for_sequence_start(call, permit, timeout_s)
        if not self._try_acquire_slot(running, permit, timeout_s):
            timeout_s = await self.wait_for_slot(running, permit, timeout_s, request)
        if self.time_left is not None:
            self.time_left.tell(permit, call.model_name)
        request.slot = permit
        return await self.dispatch.send(request, call, timeout_s=timeout_s, running=running)

    def _refusal_holds_for_equals(self, running: AuthorizedRequest) -> bool:
        """Whether equal requests of the same tenant would be refused as this one is: none could be answered from the cache, by another
        model of a route, or in another region, and all cost about as much, which tensors in shared memory do not show."""
        call, tenant = running.call, running.principal.tenant
        if call.sequence_id or call.uses_shared_memory:
            return False
        if self.region_failover is not None or self._governance.access.route(running.named_model) is not None:
            return False
        return self._cached is None or self._cached.cache.scope(call.model_name, None, tenant) is None

    def _authorize(
        self, parsed: InferCall, request: FrontendRequest, admitted: AdmittedRequest
    ) -> tuple[AuthorizedRequest, Route | None, Arm | None, float]:
        """Resolve, authorise and cost the parsed call; return the running request, the route and arm of `resolve`, and the seconds
        that the request has."""
        admitted.model_name = parsed.model_name  # before `resolve`, so that a refusal is recorded under this name
        call, route, arm = self.resolve(parsed, request.principal, request)
        if route is not None:
            request.readdress(call.model_name, call.model_version)
        if arm is not None:
            request.choose(arm.name)
        running = admitted.authorize(call, named=parsed.model_name)
        running.is_diverted = arm is not None and arm.is_makeshift
        return running, route, arm, timeout_s_of(route, asked_s=request.timeout_s, default_s=self._default_timeout_s)
