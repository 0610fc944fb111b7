"""Records each request when it ends: counts for metrics, usage for its tenant, and a line in the request log.

Only names of existing models (`model_names`) are written, whatever name the caller sent, so that callers
cannot create time series or metering rows. Called by `running_requests`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from math import inf

from control_plane.core.infer_call import Frontend, InferCall, Outcome
from control_plane.core.model import UNKNOWN_MODEL
from control_plane.core.principal import Principal
from control_plane.inference.governance import Governance, Meter
from control_plane.inference.in_flight.running_request import AuthorizedRequest, RunningRequest
from control_plane.inference.in_flight.unparsed_request import UnparsedRequest
from control_plane.inference.model_names import ModelNames
from control_plane.metering.domain.usage import MOST, ClientStatus, UsageEvent
from control_plane.telemetry.ports import RequestRecorder
from control_plane.telemetry.tracing import RequestTrace, TracedEnd
from control_plane.triton.compute_time import Ending

# Looked up once: in Python 3.11 to look up a member of an enum takes as long as a call.
_ANSWERED, _FAILED_THERE, _LEFT = Outcome.ANSWERED, Ending.FAILED, Ending.LEFT

_COMPUTED = frozenset((Outcome.ANSWERED, Outcome.UPSTREAM_ERROR, Outcome.DEADLINE_EXCEEDED, Outcome.ABANDONED))
"""Outcomes of requests that servers have computed, or would have if there were enough of them."""

# Triton computed nothing for these, so nothing is charged.
_NEVER_RAN = frozenset((Outcome.UNAVAILABLE, Outcome.MODEL_NOT_FOUND))

_ENDINGS = {Outcome.ANSWERED: Ending.ANSWERED, Outcome.UPSTREAM_ERROR: Ending.FAILED}
"""How the request ended at Triton. For all other outcomes Triton does not know that the caller is gone, and
goes on."""

# The status of a success, where no upstream answer was looked at (a cache hit).
_OK_STATUS = {Frontend.HTTP: ClientStatus(200), Frontend.GRPC: ClientStatus(0), Frontend.GRPC_STREAM: ClientStatus(0)}

_MAX_ERROR_CHARS, _MAX_ID_CHARS = 300, 128
"""Bounds of two fields of a request-log line: callers write both."""


class RequestRecords:
    """Recorder of ended requests: metrics, usage metering and request log of one process."""

    def __init__(
        self, recorder: RequestRecorder, governance: Governance, models: ModelNames, *, today_s: Callable[[], float] = time.time
    ) -> None:
        """`today_s` is seconds since 1970."""
        self._recorder = recorder
        self._access, self._costs, self._meter = governance.access, governance.costs, governance.meter
        self._models = models
        self._today_s = today_s

    def metered_by(self, meter: Meter) -> RequestRecords:
        """Return the same recorder with another meter."""
        own = copy(self)
        own._meter = meter
        return own

    def ended(self, request: RunningRequest, ended_s: float) -> None:
        """Record a request with the outcome that it has; `ended_s` is the loop's time."""
        asked_for = request.model_name if request.unparsed is None else self._model_seen_in(request, request.unparsed)
        model = self._models.name_of(asked_for)
        if model is UNKNOWN_MODEL and request.outcome is _ANSWERED:
            # Triton answered, so the model exists; it was loaded since the index was last read.
            self._models.answered(asked_for)
            model = self._models.name_of(asked_for)
        if request.is_counted:
            self._recorder.record(
                model_name=model, frontend=request.frontend, outcome=request.outcome, duration_s=ended_s - request.started_s
            )
        if request.outcome in _COMPUTED and isinstance(request, AuthorizedRequest) and not request.is_cache_hit and not request.region:
            self._recorder.record_computed(model)
            # Not a stream, whose length is its caller's choice.
            if request.outcome is _ANSWERED and request.units and request.computed_since_s() < inf:
                self._recorder.record_work(model, request.units, ended_s - request.started_s)
        if request.is_metered:
            self._add(request, model, ended_s)
        if request.trace is not None:
            self._end_trace(request.trace, request, model, ended_s)

    def hits(self, frontend: Frontend, principal: Principal, call: InferCall, count: int) -> None:
        """Record `count` equal requests that were answered from the verbatim cache, which takes no time."""
        model = call.model_name
        self._models.answered(model)
        self._recorder.record(model_name=model, frontend=frontend, outcome=Outcome.ANSWERED, duration_s=0.0, count=count)
        rows = self._costs.estimate(call)[0]
        rows, elements = min(rows, MOST), min(call.elements, MOST)
        self._meter.add_hits(principal.tenant, model, requests=count, rows=rows * count, elements=elements * count)

    def refusals(self, frontend: Frontend, principal: Principal, call: InferCall, count: int) -> None:
        """Record `count` requests that were refused unparsed, as an equal one was, which takes no time."""
        model = self._models.name_of(call.model_name)
        self._recorder.record(model_name=model, frontend=frontend, outcome=Outcome.REFUSED, duration_s=0.0, count=count)
        self._meter.add_refusals(principal.tenant, model, requests=count)

    def unread(self, frontend: Frontend, principal: Principal, count: int) -> None:
        """Record `count` requests that were refused unread: nobody knows of which model."""
        self._recorder.record(model_name=UNKNOWN_MODEL, frontend=frontend, outcome=Outcome.REFUSED, duration_s=0.0, count=count)
        if frontend is not Frontend.GRPC_STREAM:  # of a stream its requests are metered
            self._meter.add_refusals(principal.tenant, UNKNOWN_MODEL, requests=count)

    def _model_seen_in(self, request: RunningRequest, unparsed: UnparsedRequest) -> str:
        """The model of a request that was refused before it was parsed, as far as its head and bytes show
        it."""
        if self._meter.has_log or request.trace is not None:
            request.request_id = unparsed.header_id()
        request.model_name = request.model_name or unparsed.name_seen()
        route = self._access.route(request.model_name)
        return request.model_name if route is None else route.model

    def _add(self, request: RunningRequest, model: str, ended_s: float) -> None:
        if not isinstance(request, AuthorizedRequest):
            self._meter.add(request.principal.tenant, model, request.outcome, 0, 0, 0.0, False)
            if self._meter.has_log:
                self._meter.log(self._event(request, model, rows=0, units=0.0, duration_s=ended_s - request.started_s))
            return
        sent_s = None if request.outcome in _NEVER_RAN else request.sent_s
        by_table = 0.0 if sent_s is None else self._charge(request, sent_s, ended_s)
        model = request.model_name if by_table else model  # a latency table lies in a repository here, so the model exists
        was_worked_on = model is not UNKNOWN_MODEL and (request.sent_s is not None or request.is_cache_hit)
        rows = request.rows if was_worked_on else 0
        elements = request.call.elements
        if not request.region:
            self._meter.add(request.principal.tenant, model, request.outcome, rows, elements, by_table, request.is_cache_hit)
        if self._meter.has_log:
            units = 0.0 if sent_s is None else _expected(request, by_table, ended_s - sent_s)
            self._meter.log(self._event(request, model, rows=rows, units=units, duration_s=ended_s - request.started_s))

    def _charge(self, request: AuthorizedRequest, sent_s: float, ended_s: float) -> float:
        """The compute units charged by latency table; `Costs.charge` takes the rest, to be charged by
        Triton's counts."""
        if request.outcome is _ANSWERED and not request.steps:
            return request.table_units
        ending = _LEFT if request.continues_at_triton else _ENDINGS.get(request.outcome, _LEFT)
        at_triton_ms = (ended_s - sent_s) * 1e3 * request.parts_at_once
        if request.steps:
            self._costs.charge(request.principal.tenant, request.model_name, request.steps, ending, request.computed_rows, at_triton_ms)
        # A failed request may have been refused before it was computed, so it is charged no more than its
        # time at Triton.
        return min(request.table_units, at_triton_ms) if ending is _FAILED_THERE else request.table_units

    def _end_trace(self, trace: RequestTrace, request: RunningRequest, model: str, ended_s: float) -> None:
        named = request.named_model or request.model_name
        trace.end(
            TracedEnd(
                model=model,
                route=named if self._access.route(named) is not None else "",
                tenant=request.principal.tenant,
                frontend=request.frontend,
                outcome=request.outcome,
                status=_told(request).status,
                server=request.server if isinstance(request, AuthorizedRequest) else "",
                request_id=request.request_id[:_MAX_ID_CHARS],
                began_s=request.started_s,
                ended_s=ended_s,
            )
        )

    def _event(self, request: RunningRequest, model: str, *, rows: int, units: float | None, duration_s: float) -> UsageEvent:
        authorized = request if isinstance(request, AuthorizedRequest) else None
        told = _told(request)
        named = request.named_model or request.model_name
        return UsageEvent(
            ended_s=self._today_s(),
            tenant=request.principal.tenant,
            key_id=request.principal.key_id,
            route=named if self._access.route(named) is not None else self._models.name_of(named),
            model=model,
            frontend=request.frontend,
            outcome=request.outcome,
            duration_s=duration_s,
            rows=rows,
            elements=0 if authorized is None else authorized.call.elements,
            compute_units=units,
            cache_hit=authorized is not None and authorized.is_cache_hit,
            server="" if authorized is None else authorized.server,
            status=told.status,
            error=told.error[:_MAX_ERROR_CHARS],  # an upstream's error text may repeat the request
            request_id=request.request_id[:_MAX_ID_CHARS],
        )


def _told(request: RunningRequest) -> ClientStatus:
    return request.client_status or (_OK_STATUS[request.frontend] if request.outcome is _ANSWERED else ClientStatus(None))


def _expected(request: AuthorizedRequest, by_table: float, at_triton_s: float) -> float | None:
    """The estimate for the log of all that a request will be charged; None where nothing is known of its
    cost.

    No more than its time at Triton (one unit is 1 ms), unless Triton goes on computing after the caller has
    left.
    """
    if request.units is None:
        return None
    has_left = request.continues_at_triton or request.outcome not in _ENDINGS
    most = inf if has_left else at_triton_s * 1e3 * request.parts_at_once
    return by_table + min(request.units - request.table_units, most)
