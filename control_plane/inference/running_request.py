"""One request under way, from when it has come until it is over; `running_requests` has all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from control_plane.admission.admission import Permit
from control_plane.core.errors import ControlPlaneError, ErrorCode
from control_plane.core.infer_call import Door, InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.inference.governance import Governance
from control_plane.inference.server_fault import told_by
from control_plane.metering.domain.usage import Told

_OUTCOMES = {
    ErrorCode.UPSTREAM_UNAVAILABLE: Outcome.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED: Outcome.DEADLINE_EXCEEDED,
    ErrorCode.MODEL_NOT_FOUND: Outcome.MODEL_NOT_FOUND,
    ErrorCode.UPSTREAM_FAILED: Outcome.UPSTREAM_ERROR,
}

ToldOf = Callable[[Door, BaseException], Told]
"""`frontends/common/status.told_of`."""


class Source(Protocol):
    """A request as it came, of which a refusal is recorded under the right name though nobody has read it."""

    def name_seen(self) -> str:
        """The name that it calls, as far as that can be seen at once; else empty. Anything: it is looked up, and kept only if it exists."""

    def header_id(self) -> str:
        """The id that its head has (`x-request-id`); else empty."""


class _Unseen:
    """A `Source` of which there is nothing to see."""

    def name_seen(self) -> str:
        return ""

    def header_id(self) -> str:
        return ""


UNSEEN = _Unseen()


class Owner(Protocol):
    """`inference/running_requests.RunningRequests`, as its requests see it."""

    governance: Governance
    has_log: bool
    """Whether anybody wants to know what callers are told."""
    told_of: ToldOf
    now_s: Callable[[], float]
    """The loop's time."""

    def end(self, request: RunningRequest) -> None: ...


class RunningRequest:
    """One of them, ended once: by `end`, or by the end of its `with` block, which an exception tells how it went."""

    __slots__ = (
        "_all",
        "_goes_on",
        "_handed_over",
        "_has_left",
        "call",
        "computed_rows",
        "door",
        "goes_on_at_triton",
        "is_cache_hit",
        "is_counted",
        "is_metered",
        "is_repeatable",
        "model_name",
        "named",
        "outcome",
        "parts_at_once",
        "permit",
        "principal",
        "request_id",
        "rows",
        "sent_s",
        "server",
        "source",
        "started_s",
        "steps",
        "table_units",
        "told",
        "units",
    )

    computed_rows: float
    """Those that are not kept from before."""
    table_units: float
    """Compute units that it is charged by latency tables."""
    steps: tuple[str, ...]
    """The models whose computing is charged when Triton's counts tell it."""
    parts_at_once: int

    def __init__(self, all_of_them: Owner, door: Door, principal: Principal, started_s: float, source: Source) -> None:
        self._all = all_of_them
        self.source: Source | None = source
        """Until it has been read and may be answered: it holds the request's body."""
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
        """While there is a `source`, this may be a route's."""
        self.server = ""
        """That it was sent to, or whose answer to another it was given."""
        self.told: Told | None = None
        self.request_id = ""
        self.rows = 0
        self.units: float | None = None
        """Compute units that it is expected to take altogether; None where nobody knows."""
        self.is_cache_hit = False
        self.is_repeatable = False
        """Equal requests have equal answers, so computing it twice does no harm."""
        self.outcome = Outcome.FAILED
        self.goes_on_at_triton = False
        """Its end here says nothing of its end there."""
        self.started_s = started_s
        self.sent_s: float | None = None
        """When it went to a server; None: it has not."""

    def __enter__(self) -> RunningRequest:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self.fail(error)
        if self._handed_over is not None:
            self._has_left = True
        elif not self._goes_on or error is not None:
            self._all.end(self)

    def enter(self) -> bool:
        """Let it in, on what its tenant has left; False: `enter_when_told`. Raises LimitExceeded."""
        self.permit = self._all.governance.admission.enter(self.principal.tenant)
        return self.permit is not None

    async def enter_when_told(self) -> None:
        """The same where only what all processes have let in decides. Raises LimitExceeded."""
        self.permit = await self._all.governance.admission.enter_when_told(self.principal.tenant)

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
        self.call = call
        self.is_about(call, named=named)
        self.expect(call)
        self.rows = int(self.computed_rows)

    def expect(self, call: InferCall) -> None:
        """No more is computed for it than for this, and in one piece."""
        self.computed_rows, by_table, rest, self.steps = self._all.governance.costs.of(call)
        self.table_units, self.parts_at_once = by_table, 1
        self.units = None if rest is None else by_table + rest

    def sent_in_parts(self, part: float, at_once: int) -> None:
        """Only this part of it has gone to a server, so many requests at a time."""
        self.computed_rows, self.table_units, self.parts_at_once = self.computed_rows * part, self.table_units * part, at_once
        self.units = None if self.units is None else self.units * part

    def sent(self, server: str) -> None:
        """It goes to that server now, which has its model, and is charged from then on."""
        self.server, self.sent_s = server, self._all.now_s()

    def is_about(self, call: InferCall, *, named: InferCall) -> None:
        """Whatever comes of it, it is this that was asked for."""
        self.named, self.model_name = named, call.model_name
        if self.source is not None and self._all.has_log:
            self.request_id = call.request_id or self.source.header_id()
        self.source = None

    def answered(self, outcome: Outcome, answer: object) -> None:
        """A server has answered it, which amounts to that; an answer that it shares with another tells the same."""
        self.outcome = outcome
        if self._all.has_log:
            self.told = told_by(answer)

    def fail(self, error: BaseException) -> None:
        """It ends with that, unless something else comes of it."""
        self.outcome = outcome_of(error)
        if self._all.has_log:
            self.told = self._all.told_of(self.door, error)

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

    def break_off(self, error: BaseException) -> None:
        """Its answer ends with that, after its status was told."""
        self.outcome = outcome_of(error)
        if self.told is not None:
            self.told = Told(self.told.status, str(error))

    def go_on(self) -> None:
        """Let it be recorded by `end`, beyond its `with` block."""
        self._goes_on = True

    def end(self, outcome: Outcome | None = None) -> None:
        """It is over; without an outcome, with the one that it has."""
        if outcome is not None:
            self.outcome = outcome
        self._all.end(self)


def outcome_of(error: BaseException) -> Outcome:
    """How a request ended that ended with `error`."""
    if isinstance(error, asyncio.CancelledError):
        return Outcome.ABANDONED
    if isinstance(error, ControlPlaneError):
        return _OUTCOMES.get(error.code, Outcome.REFUSED)
    return Outcome.FAILED
