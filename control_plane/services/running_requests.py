"""The requests under way: counted while they are, and recorded and metered when they end, however they do.

`services/inference` begins one for each request and each stream, and a door ends what goes on beyond it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from control_plane.domain.errors import ControlPlaneError, ErrorCode
from control_plane.domain.inference import Door, InferCall, Outcome
from control_plane.domain.principal import Principal
from control_plane.domain.usage import MOST, UsageEvent
from control_plane.ports import RequestRecorder
from control_plane.services.admission import Permit
from control_plane.services.governance import Governance

_NEVER_RAN = frozenset((Outcome.UNAVAILABLE, Outcome.MODEL_NOT_FOUND))
_OUTCOMES = {
    ErrorCode.UPSTREAM_UNAVAILABLE: Outcome.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED: Outcome.DEADLINE_EXCEEDED,
    ErrorCode.MODEL_NOT_FOUND: Outcome.MODEL_NOT_FOUND,
    ErrorCode.UPSTREAM_FAILED: Outcome.UPSTREAM_ERROR,
}


class RunningRequest:
    """One of them, ended once: by `end`, or by the end of its `with` block, which an exception tells how it went."""

    __slots__ = (
        "_all",
        "_goes_on",
        "_handed_over",
        "_has_left",
        "call",
        "door",
        "is_cache_hit",
        "is_counted",
        "is_metered",
        "is_repeatable",
        "model_name",
        "named",
        "outcome",
        "permit",
        "principal",
        "rows",
        "sent_s",
        "started_s",
        "units",
    )

    def __init__(self, all_of_them: RunningRequests, door: Door, principal: Principal, started_s: float) -> None:
        self._all = all_of_them
        self._goes_on = self._has_left = False
        self._handed_over: Permit | None = None
        self.door = door
        self.principal = principal
        self.is_counted = True
        self.is_metered = True
        self.permit: Permit | None = None
        self.call: InferCall | None = None
        """Once it has been read and may be answered."""
        self.named: InferCall | None = None
        self.model_name = ""
        self.rows = 0
        self.units: float | None = None
        """Compute units that it is expected to take; None where nobody knows."""
        self.is_cache_hit = False
        self.is_repeatable = False
        """Equal requests have equal answers, so computing it twice does no harm."""
        self.outcome = Outcome.FAILED
        self.started_s = started_s
        self.sent_s: float | None = None

    def __enter__(self) -> RunningRequest:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self.outcome = outcome_of(error)
        if self._handed_over is not None:
            self._has_left = True
        elif not self._goes_on or error is not None:
            self._all.end(self)

    def enter(self) -> None:
        """Let it in, on what its tenant has left. Raises LimitExceeded."""
        self.permit = self._all.governance.admission.enter(self.principal.tenant)

    def hand_over_permit(self) -> Permit:
        """To a computation that goes on for others when this one's caller leaves: then this ends when it is `computed`."""
        self._handed_over, self.permit = self.permit, None
        assert self._handed_over is not None, "it has not been let in"
        return self._handed_over

    @property
    def waits_for_its_turn(self) -> bool:
        """Whether its computation has to wait since the model is busy."""
        return self._handed_over is not None and self._handed_over.is_waiting

    def computed(self) -> None:
        """What has its permit is done with it."""
        assert self._handed_over is not None, "nothing has its permit"
        self._handed_over.release()
        self._handed_over = None
        if self._has_left:
            self._all.end(self)

    def understood(self, call: InferCall, *, named: InferCall) -> None:
        """It asks for this, and may; `named` by the name of a model or route."""
        self.call, self.named, self.model_name = call, named, call.model_name
        self.rows, self.units = self._all.governance.costs.of(call)

    @property
    def expected_units(self) -> float:
        """Of a model of which nothing is known a row counts as one; shares are counted within a model, so any constant would do."""
        return float(self.rows) if self.units is None else self.units

    @property
    def pool(self) -> str:
        """Of servers, as its route names it; empty where it has none, or none is named."""
        route = None if self.named is None else self._all.governance.access.route(self.named.model_name)
        return "" if route is None else route.pool

    @property
    def priority(self) -> int:
        """Its tenant's."""
        permit = self.permit or self._handed_over
        return 0 if permit is None else permit.priority

    def go_on(self) -> None:
        """Let it be recorded by `end`, beyond its `with` block."""
        self._goes_on = True

    def end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._all.end(self)


class RunningRequests:
    """All of one process, for all doors."""

    def __init__(
        self,
        recorder: RequestRecorder,
        governance: Governance,
        *,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`now_s` is the loop's time, `today_s` seconds since 1970."""
        self.governance = governance
        self.in_flight = 0
        """Requests that have come and have not been answered."""
        self._recorder = recorder
        self._now_s = now_s
        self._today_s = today_s
        self._answered: set[str] = set()
        """Models that have answered, as many as there are; callers can make up any number of other names."""

    def begin(self, door: Door, principal: Principal) -> RunningRequest:
        """Count a request as in flight from now on."""
        self.in_flight += 1
        return RunningRequest(self, door, principal, self._now_s())

    def begin_stream(self, principal: Principal) -> RunningRequest:
        """The same for a stream, whose requests are metered each by itself."""
        stream = self.begin(Door.GRPC_STREAM, principal)
        stream.is_metered = False
        return stream

    def begin_within_stream(self, principal: Principal) -> RunningRequest:
        """The same for one of a stream's requests; metrics count the stream."""
        request = RunningRequest(self, Door.GRPC_STREAM, principal, self._now_s())
        request.is_counted = False
        return request

    def hit(self, door: Door, principal: Principal, call: InferCall, *, named: InferCall) -> None:
        """One that is answered at once from what was kept, and so is never under way. Raises LimitExceeded, and has then recorded it."""
        started_s = self._now_s()
        self.let_by(door, principal)
        model = call.model_name
        self._answered.add(model)
        self._recorder.record(model_name=model, door=door, outcome=Outcome.ANSWERED, duration_s=self._now_s() - started_s)
        rows, _ = self.governance.costs.of(call)
        self.governance.meter.add(principal.tenant, model, Outcome.ANSWERED, rows, call.elements, 0.0, True)
        if self.governance.meter.has_log:
            hit = RunningRequest(self, door, principal, started_s)
            hit.understood(call, named=named)
            hit.is_cache_hit, hit.outcome = True, Outcome.ANSWERED
            self._log(hit, model, rows, 0.0)

    def hits(self, door: Door, principal: Principal, call: InferCall, count: int) -> None:
        """Count so many more, of which each was `let_by`; they took no time worth measuring."""
        model = call.model_name
        self._recorder.record(model_name=model, door=door, outcome=Outcome.ANSWERED, duration_s=0.0, count=count)
        rows, _ = self.governance.costs.of(call)
        rows, elements = min(rows, MOST), min(call.elements, MOST)
        self.governance.meter.add_hits(principal.tenant, model, requests=count, rows=rows * count, elements=elements * count)

    def let_by(self, door: Door, principal: Principal) -> None:
        """One that is over as it comes. Raises LimitExceeded, and has then recorded it."""
        try:
            self.governance.admission.let_by(principal.tenant)
        except ControlPlaneError:
            with self.begin(door, principal):
                raise

    def end(self, request: RunningRequest) -> None:
        """It is over, with the outcome that it has."""
        ended_s = self._now_s()
        if request.permit is not None:
            request.permit.release()
        if request.is_counted:
            self.in_flight -= 1
            duration_s = ended_s - request.started_s
            self._recorder.record(model_name=request.model_name, door=request.door, outcome=request.outcome, duration_s=duration_s)
        if request.is_metered:
            self._meter(request, ended_s)

    def _meter(self, request: RunningRequest, ended_s: float) -> None:
        """A name that no model has ever answered to is not kept, or callers could grow the table of usage at will."""
        model, outcome, meter = request.model_name, request.outcome, self.governance.meter
        if outcome is Outcome.ANSWERED:
            self._answered.add(model)
        if model not in self._answered or (request.sent_s is None and not request.is_cache_hit):
            model = ""
        rows, units = request.rows if model else 0, 0.0
        if model and request.sent_s is not None and outcome not in _NEVER_RAN:
            units = (ended_s - request.sent_s) * 1e3 if request.units is None else request.units
        elements = 0 if request.call is None else request.call.elements
        meter.add(request.principal.tenant, model, outcome, rows, elements, units, request.is_cache_hit)
        if meter.has_log:
            self._log(request, model, rows, units)

    def _log(self, request: RunningRequest, model: str, rows: int, units: float) -> None:
        self.governance.meter.log(
            UsageEvent(
                ended_s=self._today_s(),
                tenant=request.principal.tenant,
                key_id=request.principal.key_id,
                route=request.named.model_name if model and request.named is not None else "",
                model=model,
                door=request.door,
                outcome=request.outcome,
                duration_s=self._now_s() - request.started_s,
                rows=rows,
                elements=0 if request.call is None else request.call.elements,
                compute_units=units,
                cache_hit=request.is_cache_hit,
            )
        )


def outcome_of(error: BaseException) -> Outcome:
    """How a request ended that ended with `error`."""
    if isinstance(error, asyncio.CancelledError):
        return Outcome.ABANDONED
    if isinstance(error, ControlPlaneError):
        return _OUTCOMES.get(error.code, Outcome.REFUSED)
    return Outcome.FAILED
