"""Lifecycle of one request in flight, from arrival to end; `running_requests` is the registry of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import Any, Protocol

from control_plane.admission.permit import Permit
from control_plane.core.infer_call import Frontend, InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.inference.governance import Governance, Meter
from control_plane.inference.in_flight.outcomes import error_for_caller, outcome_of
from control_plane.inference.in_flight.unparsed_request import UnparsedRequest
from control_plane.inference.retries.server_fault import client_status_in
from control_plane.metering.domain.usage import ClientStatus
from control_plane.objects.domain.route import HedgingPolicy
from control_plane.telemetry.tracing import RequestTrace

_FAILED_THERE = frozenset((Outcome.UPSTREAM_ERROR, Outcome.UNAVAILABLE, Outcome.MODEL_NOT_FOUND))
"""Outcomes of requests that Triton has answered with an error."""

_ANSWERED, _FAILED = Outcome.ANSWERED, Outcome.FAILED  # once: in Python 3.11 to look up a member of an enum takes as long as a call
_NO_POLICY = HedgingPolicy()

ClientStatusOf = Callable[[Frontend, BaseException], ClientStatus]
"""The status and text that a caller of this protocol gets for an error; `frontends/common/status.client_status_of`."""


class RequestRegistry(Protocol):
    """Registry that a request reports its end to: `inference/in_flight/running_requests.RunningRequests`."""

    governance: Governance
    meter: Meter
    """Whose `has_log` says whether statuses and texts are noted."""
    client_status_of: ClientStatusOf
    now_s: Callable[[], float]
    """The loop's time."""

    def end(self, request: RunningRequest) -> None: ...


class RunningRequest:
    """One request in flight, from its arrival to its end; ended once, by `end` or by the end of its `with` block
    (an exception gives the outcome).

    Its class is the stage that it has reached: `admit` turns it into an `AdmittedRequest`, `authorize` that into an
    `AuthorizedRequest`. It stays the same object, so that a stage costs no other one.

    It outlives its `with` block in two cases: a flight holds its permit (`transfer_permit`), or its answer
    is streamed (`detach`).
    """

    __slots__ = (
        "_goes_on",
        "_has_flight",
        "_has_left",
        "_held_permit",
        "_registry",
        "batch_of",
        "call",
        "client_status",
        "computed_rows",
        "continues_at_triton",
        "expected_units",
        "flight",
        "frontend",
        "is_cache_hit",
        "is_computed_in_part",
        "is_counted",
        "is_diverted",
        "is_metered",
        "is_repeatable",
        "is_suspect",
        "model_name",
        "named_model",
        "outcome",
        "parts_at_once",
        "permit",
        "principal",
        "region",
        "request_id",
        "rows",
        "sent_s",
        "server",
        "started_s",
        "steps",
        "table_units",
        "trace",
        "units",
        "unparsed",
    )

    def __init__(
        self, registry: RequestRegistry, frontend: Frontend, principal: Principal, started_s: float, unparsed: UnparsedRequest | None
    ) -> None:
        """Without `unparsed` it is a part of another request."""
        self._registry = registry
        self.unparsed = unparsed
        """The request as its frontend holds it; dropped once it is parsed and authorised, since it holds the body."""
        self._goes_on = self._has_flight = self._has_left = False
        self.flight: asyncio.Task[Any] | None = None
        """The flight to which the request has given its permit."""
        self._held_permit: Permit | None = None
        """The permit that is released at the request's end."""
        self.batch_of: AuthorizedRequest | None = None
        """The request some of whose rows it is for; None for all others."""
        self.frontend = frontend
        self.principal = principal
        self.is_counted = True
        self.is_metered = True
        self.model_name = ""
        """While `unparsed` is set this may be a route's name."""
        self.named_model = ""
        """The model or route as the caller wrote it; empty before the call is authorised."""
        self.client_status: ClientStatus | None = None
        self.trace: RequestTrace | None = None
        """Trace from which spans are made at the request's end; None where the request is not sampled."""
        self.request_id = ""
        self.outcome = _FAILED
        self.started_s = started_s

    def __enter__(self) -> RunningRequest:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self.fail(error)
        if self._has_flight:
            self._has_left = True  # its flight goes on for the followers, and ends it in `flight_ended`
        elif not self._goes_on or error is not None:
            self._registry.end(self)

    def admit(self) -> AdmittedRequest | None:
        """Admit the request within its tenant's limits; None: call `admit_when_synced`. Raises LimitExceeded."""
        permit = self._registry.governance.admission.admit(self.principal.tenant)
        return None if permit is None else self.admitted_by(permit)

    async def admit_when_synced(self) -> AdmittedRequest:
        """Admit the request after asking the store by which all processes share their rate limits.

        Raises LimitExceeded.
        """
        return self.admitted_by(await self._registry.governance.admission.admit_when_synced(self.principal.tenant))

    def admitted_by(self, permit: Permit) -> AdmittedRequest:
        """Make the request an admitted one, which holds this permit."""
        admitted: AdmittedRequest = self  # type: ignore[assignment]  # `cast` would be a call for each request
        admitted.__class__ = AdmittedRequest
        admitted.permit = self._held_permit = permit
        return admitted

    def admitted_within(self, whole: AuthorizedRequest) -> AdmittedRequest:
        """Make the request an admitted one by the permit of `whole`, which goes on holding it."""
        admitted = self.admitted_by(whole.permit)
        self._held_permit, self.batch_of = None, whole
        return admitted

    def set_requested(self, call: InferCall, *, named: str) -> None:
        """Note what was asked for, for the records, whether or not the call is authorised; `named` is the model or route as
        the caller wrote it."""
        self.named_model, self.model_name = named, call.model_name
        if self.unparsed is not None and (self._registry.meter.has_log or self.trace is not None):
            self.request_id = call.request_id or self.unparsed.header_id()
        self.unparsed = None  # frees the body, which may be megabytes

    def answered(self, outcome: Outcome, answer: object) -> None:
        """Note a server's answer to this request, or to the flight that it joined, and the outcome that the answer amounts to."""
        self.outcome = outcome
        if self._registry.meter.has_log or self.trace is not None:
            self.client_status = client_status_in(answer)

    def fail(self, error: BaseException) -> None:
        """Note the error that the request ends with, unless it is answered after all."""
        error = error_for_caller(error)
        self.outcome = outcome_of(error)
        if self._registry.meter.has_log or self.trace is not None:
            self.client_status = self._registry.client_status_of(self.frontend, error)

    def mark_broken_off(self, error: BaseException) -> None:
        """Note an error that breaks a streamed answer off after its status was sent; the log keeps that status."""
        self.outcome = outcome_of(error)
        if self.client_status is not None:
            self.client_status = ClientStatus(self.client_status.status, str(error))

    def detach(self) -> None:
        """Let the request outlive its `with` block; whoever detaches it must call `end`."""
        self._goes_on = True

    def end(self, outcome: Outcome | None = None) -> None:
        """End the request with `outcome`, or with the outcome that it has."""
        if outcome is not None:
            self.outcome = outcome
        self._registry.end(self)

    def release_permit(self, now_s: float) -> None:
        """Release the permit that the request holds, if any; called at its end, at the loop's time `now_s`."""
        if self._held_permit is not None:
            self._held_permit.release(sent_s=self.computed_since_s(), now_s=now_s)

    def computed_since_s(self) -> float:
        """When the request's computing began, for the model's service time; infinity where nothing follows from it."""
        return inf


class AdmittedRequest(RunningRequest):
    """A running request that is within its tenant's limits, and not parsed yet."""

    __slots__ = ()

    permit: Permit

    def authorize(self, call: InferCall, *, named: str) -> AuthorizedRequest:
        """Note the parsed and authorised call as it goes to Triton; `named` is the model or route as the caller wrote it."""
        authorized: AuthorizedRequest = self  # type: ignore[assignment]
        authorized.__class__ = AuthorizedRequest
        authorized.call = call
        authorized.server, authorized.sent_s, authorized.region = "", None, ""
        if self.unparsed is not None:
            authorized.permit.held_bytes = self.unparsed.body_bytes()
        authorized.is_cache_hit = authorized.is_repeatable = authorized.continues_at_triton = authorized.is_diverted = False
        authorized.is_computed_in_part = authorized.is_suspect = False
        self.set_requested(call, named=named)
        authorized.estimate_cost(call)
        authorized.rows = int(authorized.computed_rows)
        return authorized


class AuthorizedRequest(AdmittedRequest):
    """A running request whose call is parsed, routed, allowed and costed: it may be computed."""

    __slots__ = ()

    call: InferCall
    """The call as it goes to Triton, after routing."""
    server: str
    """Name of the server that the request was sent to, or that answered the flight that it joined."""
    region: str
    """Name of the other region that has computed it, which counts its usage; empty where it was computed here."""
    sent_s: float | None
    """When the request was sent to a server, in the loop's time; None if it has not been sent."""
    rows: int
    units: float | None
    """Compute units that the request is expected to take altogether; None where the model's cost is unknown."""
    expected_units: float
    """Expected compute units, for the fair queue; one per row where the model's cost is unknown.

    Shares are compared within one model only, so any constant per row would do.
    """
    computed_rows: float
    """Rows that Triton computes for this request, without those that came from the cache."""
    table_units: float
    """Compute units that are charged by latency tables."""
    steps: tuple[str, ...]
    """The models whose computing is charged later, by Triton's counts."""
    parts_at_once: int
    """Upstream requests that this one has in flight at the same time; 1 unless it is sent in parts."""
    is_cache_hit: bool
    is_repeatable: bool
    """Whether equal requests have equal answers, so that sending the request twice does no harm."""
    is_computed_in_part: bool
    """Whether parts of a sharded model were computed for it that must not be computed twice, whatever another has refused."""
    is_suspect: bool
    """Whether a process has died under it, or under one of its batches."""
    continues_at_triton: bool
    """Whether Triton may go on computing it after it has ended here."""
    is_diverted: bool
    """Whether another model computes it than the one that it was assigned to, which has failed or is too slow just now."""

    def transfer_permit(self) -> Permit:
        """Give the permit to a flight that outlives this request's caller; the request then ends with the flight (`flight_ended`)."""
        self._held_permit, self._has_flight = None, True
        return self.permit

    async def cancelled_flight_ended(self) -> None:
        """Wait until the flight has ended that holds the permit, if it is being cancelled, as nobody waits for it any more."""
        if self._has_flight and self.flight is not None and self.flight.cancelling():
            await asyncio.wait((self.flight,))

    @property
    def has_flight(self) -> bool:
        """Whether a flight holds the request's permit."""
        return self._has_flight

    def note_death(self) -> None:
        """Note that a process has died under the request."""
        (self.batch_of or self).is_suspect = True

    def divert(self, call: InferCall) -> None:
        """Turn the request to another model: what the first one has cost is not charged. Not while it `has_flight`."""
        self._renew()
        self.call, self.model_name = call, call.model_name
        self.is_cache_hit = self.continues_at_triton = False
        self.is_diverted = True
        self.estimate_cost(call)

    def leave_region(self) -> None:
        """Give the slot back, since another region is to compute the request, which stays within its tenant's limits. A flight
        that goes on for others keeps it, and is the request's no longer."""
        self._renew()
        self._has_flight, self.flight = False, None

    def answered_in(self, region: str) -> None:
        """Note that another region has computed the request."""
        self.region, self.server = region, f"region:{region}"

    def _renew(self) -> None:
        """Exchange the permit, and with it the slot, for a new one."""
        permit = self.permit.renewed()
        if self._held_permit is not None:
            self._held_permit.release(sent_s=self.computed_since_s())
        self.permit = self._held_permit = permit
        self.server, self.sent_s = "", None

    def flight_ended(self, permit: Permit) -> None:
        """Called when the flight has ended that holds this permit of the request."""
        if permit is not self.permit:  # the request has left the flight, and what it did since says nothing of that
            permit.release(sent_s=inf)
            return
        permit.release(sent_s=self.computed_since_s())
        self._has_flight, self.flight = False, None
        if self._has_left:
            self._registry.end(self)

    def estimate_cost(self, call: InferCall) -> None:
        """Estimate the request's cost as that of `call`, sent as one upstream request."""
        self.computed_rows, by_table, rest, self.steps = self._registry.governance.costs.estimate(call)
        self.table_units, self.parts_at_once = by_table, 1
        self.units = None if rest is None else by_table + rest
        self.expected_units = float(self.computed_rows) if self.units is None else self.units

    def mark_sent_in_parts(self, part: float, at_once: int) -> None:
        """Scale the request's cost to the `part` (0 to 1) that was sent to a server, as `at_once` requests at a time."""
        self.computed_rows, self.table_units, self.parts_at_once = self.computed_rows * part, self.table_units * part, at_once
        if self.units is not None:
            self.units = self.expected_units = self.units * part

    def sent(self, server: str) -> None:
        """Note that the request is sent to `server` now; it is charged from this moment."""
        self.server, self.sent_s = server, self._registry.now_s()

    def computed_since_s(self) -> float:
        """When the request was sent; infinity where it was not, where its length is the caller's choice, as a stream's is, and where
        it failed sooner than an answer would have come: a caller whose requests fail at once would make a slow model seem fast."""
        if self.sent_s is None or self._goes_on or self.call.is_open_ended:
            return inf
        if (
            self.outcome is not _ANSWERED
            and self.outcome in _FAILED_THERE
            and self._registry.now_s() - self.sent_s < self.permit.expected_s
        ):
            return inf
        return self.sent_s

    @property
    def pool(self) -> str:
        """The server pool that the request's route names; empty where there is no route, or the route names none."""
        route = self._registry.governance.access.route(self.named_model)
        return "" if route is None else route.pool

    @property
    def hedging(self) -> HedgingPolicy:
        """The policy of the request's route for sending it to two servers."""
        route = self._registry.governance.access.route(self.named_model)
        return _NO_POLICY if route is None else route.hedging

    @property
    def priority(self) -> int:
        """The priority of the request's tenant."""
        return self.permit.priority
