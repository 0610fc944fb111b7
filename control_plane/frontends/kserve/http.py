"""KServe v2 frontend over HTTP, with Triton's extensions, for unmodified Triton clients and perf_analyzer."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import orjson

from control_plane.auth.domain.authorization import OVERRIDE_NEED, need_of_call
from control_plane.auth.stream_rights import StreamRights
from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.action import Action
from control_plane.core.errors import (
    GatewayStopping,
    ModelLoadFailed,
    ModelNotFound,
    PayloadTooLarge,
    PermissionDenied,
    RouteNotFound,
    Unauthenticated,
)
from control_plane.core.infer_call import Frontend
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.frontends.common.body_budget import UNCOUNTED_BYTES
from control_plane.frontends.common.caller import identify, reauthenticate
from control_plane.frontends.common.status import message_of
from control_plane.frontends.http.answers.streams import watched
from control_plane.frontends.kserve.http_fleet import HttpFleetAnswers
from control_plane.frontends.kserve.http_infer import (
    HttpInferContext,
    HttpInferRequest,
    decode,
    is_all_json,
)
from control_plane.frontends.kserve.http_verbatim import HttpVerbatimCache
from control_plane.frontends.kserve.services import KServeServices
from control_plane.inference.inference import SHARED_MEMORY_IS_OFF
from control_plane.inference.timed_request import timed, timed_stream
from control_plane.protocols.grpc import GrpcStatus
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer, no_content
from control_plane.protocols.kserve.model_control import not_in_any_repository, read_load_request, read_unload_request
from control_plane.protocols.kserve.requests.infer_json import json_steps
from control_plane.protocols.kserve.routes import ADMINISTRATORS_ONLY, OF_JOBS, V2Route, read_route, target_for
from control_plane.protocols.kserve.visible_statistics import visible_json
from control_plane.protocols.server_timing import ASKED_BY
from control_plane.triton.ports import HttpStream

_INFER = Action.INFER  # once: in Python 3.11 to look up a member of an enum takes as long as a call
_ASKS_TIMES = ASKED_BY.encode()
_INFERENCE = frozenset((Action.INFER, Action.GENERATE))
_OF_A_MODEL = frozenset((Action.READ, Action.MODEL_READY, Action.STATISTICS))
_WITH_LARGE_BODY = frozenset((*_INFERENCE, Action.SUBMIT_JOB, Action.COMPUTE_JOB))
_LASTING = OF_JOBS - {Action.COMPUTE_JOB} | {Action.EVENTS}
"""Calls whose answers may be waited for, or take their reader long: events, results of jobs, and `Prefer: wait`."""
_EMPTY_TEXT = make_answer(200, content_type=b"text/plain")
_EMPTY_JSON = make_answer(200)

_HTTP_OF_UPSTREAM_CODE: dict[int, int] = {GrpcStatus.INVALID_ARGUMENT: 400, GrpcStatus.NOT_FOUND: 404, GrpcStatus.UNAVAILABLE: 503}
"""The HTTP status that Triton itself gives a failed load, by the gRPC code it gave us; 500 for all others."""


class JobsApplication(Protocol):
    """Answers the calls for jobs, whose callers are authorised: `frontends/jobs/http`."""

    async def answer(self, request: HttpRequest, route: V2Route, principal: Principal) -> HttpAnswer | HttpStream: ...


class EventsApplication(Protocol):
    """Answers the call for a tenant's own events, whose caller is authorised: `frontends/tenant_events`."""

    def read(self, request: HttpRequest, principal: Principal) -> HttpStream: ...


class V2Http:
    """The application behind the HTTP data port."""

    def __init__(
        self,
        services: KServeServices,
        *,
        jobs: JobsApplication | None = None,
        events: EventsApplication | None = None,
    ) -> None:
        """Without `jobs` there are none, and without `events` none of tenants' own."""
        self._jobs, self._events = jobs, events
        self._inference, self._access, self._servers = services.inference, services.access, services.servers
        self._models, self._budget, self._limits = services.models, services.budget, services.limits
        self._read_timeout_s, self._allow_shared_memory = services.read_timeout_s, services.allow_shared_memory
        self.verbatim = HttpVerbatimCache(
            self._inference.verbatim.make(Frontend.HTTP),
            self._access,
            services.forwarding,
            are_traced=self._inference.tracer is not None,
        )
        self.context = HttpInferContext(self.verbatim, self._limits, services.forwarding, self._access)
        self._rights = StreamRights(self._access)
        catalogue = self._inference.dispatch.catalogue
        self._fleet = None if catalogue is None else HttpFleetAnswers(catalogue, timeout_s=self._read_timeout_s)

    def admit(self, request: HttpRequest) -> None:
        """Refuse a request by its head alone, so that its body need not be read.

        Raises RouteNotFound, MethodNotAllowed, Unauthenticated, PermissionDenied, LimitExceeded, PayloadTooLarge: with its body,
        the request would be refused in the same way.
        """
        route, principal = self._admitted(request)
        if route.action in _INFERENCE and not request.body:  # a limit that is reached meanwhile is met when the body is whole
            if is_all_json(request) and request.header(b"content-encoding") is None:
                self._limits.check_json_bytes(request.content_length)
            self._inference.refuse_by_head(Frontend.HTTP, principal, HttpInferRequest(request, route, principal, self.context))

    def answer(self, request: HttpRequest) -> Coroutine[Any, Any, HttpAnswer | HttpStream]:
        """Answer one request. Raises ControlPlaneError."""
        # No coroutine of its own: every inference would be passed through it twice.
        route, principal = self._admitted(request)
        if route.action in _INFERENCE:
            infer = HttpInferRequest(request, route, principal, self.context)
            if request.header(b"content-encoding") is not None:
                return self._decoded(infer, route)
            return self._infer(infer, route)
        return self._answer_other(request, route, principal)

    async def _decoded(self, request: HttpInferRequest, route: V2Route) -> HttpAnswer | HttpStream:
        async with decode(request, self._budget, self._limits):
            return await self._infer(request, route)

    async def _answer_other(self, request: HttpRequest, route: V2Route, principal: Principal) -> HttpAnswer | HttpStream:
        # Triton answers HEAD with a body, against RFC 9110. It is asked by GET, and the connection sends no body.
        if request.method == b"HEAD":
            request = HttpRequest(b"GET", request.target, request.headers)
        answer = await self._while_allowed(self._answer_control(request, route, principal), request, route, principal)
        return self._visible(answer, route, principal) if isinstance(answer, HttpAnswer) else answer

    async def _while_allowed(
        self, asking: Awaitable[HttpAnswer | HttpStream], request: HttpRequest, route: V2Route, principal: Principal
    ) -> HttpAnswer | HttpStream:
        """Await an answer; one that lasts, and a body that is still received, end with their caller's rights."""
        if principal is ANONYMOUS or route.action not in _LASTING:
            return await asking
        return await watched(asking, self._rights.watch(principal, partial(self._confirmed, request, route)))

    def _confirmed(self, request: HttpRequest, route: V2Route) -> Principal:
        """Authenticate the sender of a request again, who must still have the right to all of a tenant's events, if those are what
        it reads. Raises Unauthenticated, LimitExceeded."""
        principal = reauthenticate(self._access, request)
        if route.action is Action.EVENTS:
            try:
                self._access.require(principal, need_of_call(route.action))
            except PermissionDenied as exc:
                raise Unauthenticated(str(exc)) from exc
        return principal

    def _admitted(self, request: HttpRequest) -> tuple[V2Route, Principal]:
        route = read_route(request.method, request.target)
        principal = self._principal(request, route) if self._access.is_on else ANONYMOUS
        if route.action in ADMINISTRATORS_ONLY:
            self._guard_administration(request, route)
        if route.action not in _WITH_LARGE_BODY and max(len(request.body), request.content_length) > UNCOUNTED_BYTES:
            self._require_large_body(route.action, principal)
        return route, principal

    def _require_large_body(self, action: Action, principal: Principal) -> None:
        """Require that a call which carries no tensors may have a large body. Raises PayloadTooLarge, PermissionDenied."""
        if action is not Action.LOAD:
            raise PayloadTooLarge(f"the body of this call exceeds its limit of {UNCOUNTED_BYTES} bytes")
        self._access.require(principal, OVERRIDE_NEED)  # a model's configuration or files: what else a load says is short

    def _principal(self, request: HttpRequest, route: V2Route) -> Principal:
        """Authenticate and authorise the caller; an inference is authorised later, where its refusal is
        recorded."""
        if route.action in _INFERENCE:
            return identify(self._access, request)
        need = need_of_call(route.action, route.model_name)
        principal = ANONYMOUS if need is None else identify(self._access, request)
        self._access.require(principal, need)
        return principal

    def _guard_administration(self, request: HttpRequest, route: V2Route) -> None:
        """Guard calls of administrators: not for other machines without API keys, and never for web pages
        (CSRF)."""
        if not request.peer_is_local and not self._access.is_on:
            raise PermissionDenied("this call administers the server and is answered on the machine it runs on only")
        # Browsers send it with what a page posts to another site; Triton's clients do not.
        if request.header(b"origin") is not None:
            raise PermissionDenied("this call administers the server and is not answered to web pages")
        if route.action is Action.SHARED_MEMORY and not self._allow_shared_memory:
            raise PermissionDenied(SHARED_MEMORY_IS_OFF)

    def _infer(self, request: HttpInferRequest, route: V2Route) -> Coroutine[Any, Any, HttpAnswer | HttpStream]:
        is_timed = request.http.header(_ASKS_TIMES) == b"1"
        if route.action is _INFER:
            if is_timed:
                return timed(self._inference, request)
            return self._inference.infer(request)
        generated = timed_stream(self._inference, request) if is_timed else self._inference.generate(request)
        if request.principal is ANONYMOUS:
            return generated
        watch = self._rights.watch(request.principal, partial(reauthenticate, self._access, request.http))
        return watched(generated, watch)

    async def _answer_control(self, request: HttpRequest, route: V2Route, principal: Principal) -> HttpAnswer | HttpStream:
        match route.action:
            case Action.LIVE:
                return _EMPTY_TEXT
            # Triton, which would be asked, is ready until it is stopped; load balancers must leave before that.
            case Action.READY if self._servers.is_stopping:
                raise GatewayStopping
            case action if action in OF_JOBS:
                if self._jobs is None:
                    raise RouteNotFound("asynchronous jobs are switched off on this server (TIDEGATE_JOBS)")
                return await self._jobs.answer(request, route, principal)
            case Action.EVENTS:
                if self._events is None:
                    raise RouteNotFound("tenants have no streams of events here")
                return self._events.read(request, principal)
            case Action.OPTIONS:
                return no_content([(b"Allow", ", ".join(route.allowed).encode())])
            case Action.LOAD:
                override = read_load_request(request.body)
                self._access.require_override(principal, override)
                return await _administered(route.model_name, self._models.load(route.model_name, override))
            case Action.UNLOAD:
                dependents = read_unload_request(request.body)
                return await _administered(route.model_name, self._models.unload(route.model_name, unload_dependents=dependents))
            case _:
                if request.body and request.method == b"POST":  # JSON that is nested too deep overflows Triton's stack
                    await run_in_steps(json_steps(request.body, self._limits))
                return await self._forward(*self._readdressed(request, route))

    def _visible(self, answer: HttpAnswer, route: V2Route, principal: Principal) -> HttpAnswer:
        """Filter the statistics of all models to those that the caller may read."""
        if route.action is not Action.STATISTICS or route.model_name or principal is ANONYMOUS or answer.status != 200:
            return answer
        body = visible_json(answer.body, partial(self._access.readable, principal))
        return answer if body is None else make_answer(200, body)

    def _readdressed(self, request: HttpRequest, route: V2Route) -> tuple[HttpRequest, V2Route]:
        """Readdress a read-only call from a route's name to its model."""
        target = self._access.route(route.model_name) if route.action in _OF_A_MODEL and route.model_name else None
        if target is None:
            return request, route
        version = route.model_version or target.version
        request = request.with_target(target_for(request.target, target.model, version))
        return request, replace(route, model_name=target.model, model_version=version)

    async def _forward(self, request: HttpRequest, route: V2Route) -> HttpAnswer:
        """Forward a call to a server (one with the model, if it names one), or answer it for the fleet as a
        whole."""
        answer = None if self._fleet is None else await self._fleet.answer(request, route)
        if answer is not None:
            return answer
        timeout_s, model = self._read_timeout_s, route.model_name
        if not model or (self._fleet is None and route.action is not Action.READ):  # whether it is ready is said at once
            return await self._servers.ask(lambda server: server.http.send(request, timeout_s=timeout_s))
        server = await self._inference.dispatch.reading(model, timeout_s=timeout_s)
        return await server.http.send(request, timeout_s=timeout_s)


async def _administered(name: str, change: Awaitable[object]) -> HttpAnswer:
    """Await a load or unload; failures are rendered as Triton renders them."""
    try:
        await change
    except ModelNotFound:
        return _error(500, not_in_any_repository(name))
    except ModelLoadFailed as exc:
        return _error(_HTTP_OF_UPSTREAM_CODE.get(exc.upstream_code, 500), message_of(exc))
    return _EMPTY_JSON


def _error(status: int, text: str) -> HttpAnswer:
    return make_answer(status, orjson.dumps({"error": text}))
