"""Registry of the requests in flight: each is counted from arrival to end, then recorded and metered, whatever its outcome.

`inference/inference` begins an entry for each request and each stream; a frontend ends the entries of streams that continue
after that call has returned.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from copy import copy

from control_plane.admission.tenant_limits import TenantAccount
from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, Overloaded
from control_plane.core.infer_call import Frontend, InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.inference.governance import Governance, Meter
from control_plane.inference.in_flight.request_records import RequestRecords
from control_plane.inference.in_flight.running_request import AuthorizedRequest, ClientStatusOf, RunningRequest
from control_plane.inference.in_flight.unparsed_request import UNSEEN, UnparsedRequest
from control_plane.inference.model_names import ModelNames
from control_plane.metering.domain.usage import ClientStatus
from control_plane.telemetry.ports import RequestRecorder
from control_plane.telemetry.shed_reason import ShedReason

_LATE_RETRY_S = 1.0
"""Retry-After of a request that was not read in time: the least that callers are told."""

_ANSWERED = Outcome.ANSWERED  # once: in Python 3.11 to look up a member of an enum takes as long as a call


def unknown_client_status(frontend: Frontend, error: BaseException) -> ClientStatus:
    """The default `ClientStatusOf`, which knows no protocol's statuses: the error's text only."""
    return ClientStatus(None, str(error))


class RunningRequests:
    """Registry of the requests in flight of one process, for all its frontends."""

    def __init__(
        self,
        recorder: RequestRecorder,
        governance: Governance,
        models: ModelNames,
        *,
        client_status_of: ClientStatusOf = unknown_client_status,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`now_s` is the loop's time, `today_s` seconds since 1970."""
        self.governance = governance
        self.client_status_of = client_status_of
        self._records = RequestRecords(recorder, governance, models, today_s=today_s)
        self.meter = governance.meter
        self.in_flight = 0
        """Requests that have arrived and have not been answered."""
        self.records_later = False
        """Whether a request that was answered is recorded at the end of the loop's turn, when its answer may be on its way."""
        self._unrecorded: list[tuple[RunningRequest, float]] = []
        """Requests that have ended in this turn, with the loop's time."""
        self.now_s = now_s

    def metered_by(self, meter: Meter) -> RunningRequests:
        """Return a registry whose requests are recorded in the same way, but metered by `meter`."""
        own = copy(self)
        own._records = self._records.metered_by(meter)
        own.meter = meter
        own.in_flight = 0
        own.records_later = False  # its meter is read as soon as a request has ended
        return own

    def governed_by(self, governance: Governance) -> RunningRequests:
        """Return a registry whose requests are recorded in the same way, but admitted and metered by `governance`."""
        own = self.metered_by(governance.meter)
        own.governance = governance
        return own

    def begin(self, frontend: Frontend, principal: Principal, unparsed: UnparsedRequest = UNSEEN) -> RunningRequest:
        """Count a request as in flight from now on, until its `with` block or `end` ends it."""
        self.in_flight += 1
        return RunningRequest(self, frontend, principal, self.now_s(), unparsed)

    def late(self, frontend: Frontend, principal: Principal, left_s: float, count: int = 1) -> ControlPlaneError:
        """Record `count` requests that were not read in time, `left_s` before their deadline, and return the error for their callers.
        What they asked for is not known: they cost next to nothing, so that those behind them are answered in time."""
        error: ControlPlaneError = DeadlineExceeded("the deadline was over before the request was read")
        if left_s > 0.0:
            error = Overloaded("the gateway is too busy to read the request in time; try again later", retry_after_s=_LATE_RETRY_S)
            self.governance.admission.count_shed(principal.tenant, ShedReason.UNREAD, count)
            if count > 1 and not self.meter.has_log:
                self._records.unread(frontend, principal, count)
                return error
        for _ in range(count):
            running = self.begin_stream(principal) if frontend is Frontend.GRPC_STREAM else self.begin(frontend, principal)
            with suppress(DeadlineExceeded, Overloaded), running:
                raise error
        return error

    def begin_stream(self, principal: Principal) -> RunningRequest:
        """Count a ModelStreamInfer call as in flight; it is not metered, since each of its requests is."""
        stream = self.begin(Frontend.GRPC_STREAM, principal)
        stream.is_metered = False
        return stream

    def begin_within_stream(self, principal: Principal, unparsed: UnparsedRequest = UNSEEN) -> RunningRequest:
        """One request of a stream: metered, but not counted in metrics, which count the stream."""
        request = RunningRequest(self, Frontend.GRPC_STREAM, principal, self.now_s(), unparsed)
        request.is_counted = False
        return request

    def begin_part(self, whole: AuthorizedRequest, call: InferCall) -> AuthorizedRequest:
        """The request to a part of a sharded model: neither counted nor metered, as `whole` is, within whose limits it is."""
        part = RunningRequest(self, Frontend.GRPC, whole.principal, self.now_s(), None)
        part.is_counted = part.is_metered = False
        return part.admitted_by(whole.permit.for_part()).authorize(call, named="")

    def begin_batch(self, whole: AuthorizedRequest, call: InferCall) -> AuthorizedRequest:
        """The request for some of the rows of `whole`, in whose slot it is computed. It holds nothing, and need not be ended."""
        batch = RunningRequest(self, whole.frontend, whole.principal, self.now_s(), None).admitted_within(whole)
        authorized = batch.authorize(call, named=whole.named_model)
        authorized.is_repeatable = whole.is_repeatable
        return authorized

    def hits(self, frontend: Frontend, principal: Principal, call: InferCall, count: int) -> None:
        """Record `count` hits, each already admitted by `count_completed`; their duration is recorded as zero."""
        self._records.hits(frontend, principal, call, count)

    def refusals(self, frontend: Frontend, principal: Principal, call: InferCall, count: int) -> None:
        """Record `count` requests that their model has refused as it refused `call`, each already admitted by `count_completed`."""
        self.governance.admission.count_shed(principal.tenant, ShedReason.DEADLINE, count)
        self._records.refusals(frontend, principal, call, count)

    def count_completed(self, frontend: Frontend, principal: Principal, account: TenantAccount, call: InferCall) -> bool:
        """Admit a request that is answered at once and holds no slot; False: only all processes together can
        decide.

        Raises LimitExceeded, after recording the refused request.
        """
        try:
            return self.governance.admission.check_without_permit(account)
        except ControlPlaneError:
            with self.begin(frontend, principal) as refused:
                refused.set_requested(call, named=call.model_name)
                raise

    def end(self, request: RunningRequest) -> None:
        """End a request with the outcome that it has: release its permit and record it.

        `RunningRequest` calls this once.
        """
        now_s = self.now_s()
        request.release_permit(now_s)
        if request.is_counted:
            self.in_flight -= 1
        if self.records_later and request.outcome is _ANSWERED:
            self._unrecorded.append((request, now_s))
            if len(self._unrecorded) == 1:
                asyncio.get_running_loop().call_soon(self._record)
        else:
            self._records.ended(request, now_s)

    def _record(self) -> None:
        unrecorded, self._unrecorded = self._unrecorded, []
        for request, ended_s in unrecorded:
            self._records.ended(request, ended_s)
