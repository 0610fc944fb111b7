"""The requests under way: counted while they are, and recorded and metered when they end, however they do.

`inference/inference` begins one for each request and each stream, and a door ends what goes on beyond it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from control_plane.core.errors import ControlPlaneError
from control_plane.core.infer_call import Door, InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.inference.governance import Governance
from control_plane.inference.known_models import KnownModels
from control_plane.inference.request_records import RequestRecords
from control_plane.inference.running_request import UNSEEN, RunningRequest, Source, ToldOf
from control_plane.metering.domain.usage import Told
from control_plane.telemetry.ports import RequestRecorder


def untold(door: Door, error: BaseException) -> Told:
    """`ToldOf` of who knows no statuses."""
    return Told(None, str(error))


class RunningRequests:
    """All of one process, for all doors."""

    def __init__(
        self,
        recorder: RequestRecorder,
        governance: Governance,
        models: KnownModels,
        *,
        told_of: ToldOf = untold,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`now_s` is the loop's time, `today_s` seconds since 1970."""
        self.governance = governance
        self.told_of = told_of
        self._records = RequestRecords(recorder, governance, models, today_s=today_s)
        self.has_log = self._records.has_log
        self.in_flight = 0
        """Requests that have come and have not been answered."""
        self.now_s = now_s

    def begin(self, door: Door, principal: Principal, source: Source = UNSEEN) -> RunningRequest:
        """Count a request as in flight from now on."""
        self.in_flight += 1
        return RunningRequest(self, door, principal, self.now_s(), source)

    def begin_stream(self, principal: Principal) -> RunningRequest:
        """The same for a stream, whose requests are metered each by itself."""
        stream = self.begin(Door.GRPC_STREAM, principal)
        stream.is_metered = False
        return stream

    def begin_within_stream(self, principal: Principal, source: Source = UNSEEN) -> RunningRequest:
        """The same for one of a stream's requests; metrics count the stream."""
        request = RunningRequest(self, Door.GRPC_STREAM, principal, self.now_s(), source)
        request.is_counted = False
        return request

    def hit(self, door: Door, principal: Principal, call: InferCall, *, named: InferCall, source: Source = UNSEEN) -> bool:
        """One that is answered at once from what was kept, and so is never under way; False: it cannot be decided at once.

        Raises LimitExceeded, and has then recorded it.
        """
        started_s = self.now_s()
        if not self.let_by(door, principal, call, named=named, source=source):
            return False
        if not self.has_log:
            self._records.hits(door, principal, call, 1, duration_s=self.now_s() - started_s)
            return True
        hit = RunningRequest(self, door, principal, started_s, source)
        hit.understood(call, named=named)
        hit.is_cache_hit, hit.outcome = True, Outcome.ANSWERED
        self._records.ended(hit, self.now_s())
        return True

    def hits(self, door: Door, principal: Principal, call: InferCall, count: int) -> None:
        """Count so many more, of which each was `let_by`; they took no time worth measuring."""
        self._records.hits(door, principal, call, count)

    def let_by(self, door: Door, principal: Principal, call: InferCall, *, named: InferCall, source: Source = UNSEEN) -> bool:
        """One that is over as it comes; False: it cannot be decided at once. Raises LimitExceeded, and has then recorded it."""
        try:
            return self.governance.admission.let_by(principal.tenant)
        except ControlPlaneError:
            with self.begin(door, principal, source) as refused:
                refused.is_about(call, named=named)
                raise

    def end(self, request: RunningRequest) -> None:
        """It is over, with the outcome that it has."""
        if request.permit is not None:
            request.permit.release()
        if request.is_counted:
            self.in_flight -= 1
        self._records.ended(request, self.now_s())
