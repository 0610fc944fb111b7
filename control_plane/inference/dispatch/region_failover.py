"""Spill-over and fail-over between regions: sends requests that this region would refuse to another one, and serves those of
other regions.

A request is computed here whenever that is possible. It may leave if this region cannot answer it in time, lacks its model,
or has no server that answers; a request that exceeds its tenant's rights or rates is refused here. At most one other region
is asked, and only its success counts: otherwise the caller gets this region's own error. A request under which a process
died here does not leave, as it may be the cause. `inference/inference` calls this for each request where regions are
configured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from control_plane.core.errors import (
    ControlPlaneError,
    ModelLoadFailed,
    ModelNotFound,
    Overloaded,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.requests import SendableOn
from control_plane.inference.retries.attempt import is_repeatable
from control_plane.inference.retries.faults import DEATHS, FAULTS, Fault, Resend, fault_in, fault_of_error
from control_plane.protocols.header_forwarding import HOP_FIELD
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers

AnswerT = TypeVar("AnswerT")

REGION_HEADER = "tidegate-region"
"""Response header (HTTP) or trailer (gRPC) that names the other region which has computed an answer."""
MAX_BODY_BYTES = 4 * 2**20
"""Largest request that leaves its region: larger ones would take long on the way, and much memory while they do."""
_LEAVES_AT = 0.8
"""Part of a request's time after which it leaves if it still waits for its turn: the rest is for the other region."""
_AGAIN_S = 0.1
"""Time between tries of a request to leave while no server answers here."""
_HOP = HOP_FIELD.decode()
_MAY_BE_COMPUTED = frozenset((Fault.CONNECTION_LOST, Fault.SERVER_SILENT, Fault.REPLICA_SILENT, Fault.DEAD_STUB))
_LACKING = (ModelNotFound, ModelLoadFailed)


class OtherRegions(Protocol):
    """The other regions: `regions/regions`."""

    def asked(self) -> None:
        """Note a request that is asked here."""

    @property
    def is_any_well(self) -> bool:
        """Whether any of them could be sent requests now."""

    def would_take(self, running: AuthorizedRequest, *, left_s: float) -> bool:
        """Whether one of them could be sent the request now, which has `left_s`."""

    async def ask(
        self, request: SendableOn[AnswerT], running: AuthorizedRequest, *, left_s: float, is_model_missing: bool
    ) -> AnswerT | None:
        """Have the best of them answer a request within `left_s`; None: none of them has.

        Raises UpstreamUnavailable: it may have been computed there, and must not be computed twice. QueryOfDeath: processes
        have died of it there.
        """


class RegionFailover:
    """Spill-over and fail-over of this process's requests to other regions, and its service to their requests."""

    def __init__(self, regions: OtherRegions, servers: Servers, dispatch: Dispatch, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the event loop's time."""
        self._regions = regions
        self._servers = servers
        self._dispatch = dispatch
        self._now_s = now_s
        self._here: dict[AuthorizedRequest, asyncio.Timeout] = {}
        """Requests that are being computed here and may leave, each with the scope that takes it back."""
        self.guests = 0
        """Requests of other regions that came."""
        servers.follow(self)

    async def answer(
        self,
        request: SendableOn[AnswerT],
        running: AuthorizedRequest,
        timeout_s: float,
        here: Callable[[float], Awaitable[AnswerT]],
    ) -> AnswerT:
        """Answer a request by `here`, which gets the time that is left, or in another region. Raises as `here` does."""
        if running.permit.is_in_background:
            return await here(timeout_s)
        if request.field(_HOP) is not None:
            running.permit.mark_as_guest()
            self.guests += 1
            self._require_loaded(running)
            return await _for_another(running, here(timeout_s))
        self._regions.asked()
        if not self._may_leave(request, running):
            return await here(timeout_s)
        deadline_s = self._now_s() + timeout_s
        if not self._servers.is_answering:
            answer = await self._leave(request, running, deadline_s)
            return answer if answer is not None else await self._while_silent(request, running, deadline_s, here)
        taken_back, loop = asyncio.timeout(None), asyncio.get_running_loop()
        hurry = loop.call_later(_LEAVES_AT * timeout_s, self._hurry, taken_back, running, deadline_s)
        try:
            async with taken_back:
                self._here[running] = taken_back
                try:
                    answer = await here(timeout_s)
                finally:
                    del self._here[running]
                    hurry.cancel()
        except TimeoutError:
            if not taken_back.expired():
                raise
            return await self._fail_over(request, running, deadline_s, here)
        except ControlPlaneError as exc:
            if running.is_computed_in_part or not leaves_for_error(exc, running):
                raise
            there = await self._leave(request, running, deadline_s, is_model_missing=isinstance(exc, _LACKING))
            if there is None:
                raise
            return there
        fault = fault_in(answer)
        if fault is None or running.is_computed_in_part or not _leaves_for(fault, running):
            return answer
        there = await self._leave(request, running, deadline_s, is_model_missing=fault is Fault.MODEL_MISSING)
        return answer if there is None else there

    async def _fail_over(
        self, request: SendableOn[AnswerT], running: AuthorizedRequest, deadline_s: float, here: Callable[[float], Awaitable[AnswerT]]
    ) -> AnswerT:
        """Have a request answered in another region that was taken back from servers that say nothing, or from the queue; here after all,
        if nobody does."""
        await running.cancelled_flight_ended()  # it would take the permit with it that is to be exchanged
        answer = await self._leave(request, running, deadline_s)
        return answer if answer is not None else await self._while_silent(request, running, deadline_s, here)

    async def _while_silent(
        self, request: SendableOn[AnswerT], running: AuthorizedRequest, deadline_s: float, here: Callable[[float], Awaitable[AnswerT]]
    ) -> AnswerT:
        """Answer a request here once a server answers again, or there once another region has room. Where one is up but silent, it
        waits here: sent to that one, it could not leave any more without being computed once for each try."""
        if self._servers.is_up and not self._servers.is_answering and self._regions.is_any_well:
            answer = await self._leave_once_taken(request, running, deadline_s)
            if answer is not None:
                return answer
        running.leave_region()  # `_leave` has not, where no other region was well
        return await here(deadline_s - self._now_s())

    async def _leave_once_taken(self, request: SendableOn[AnswerT], running: AuthorizedRequest, deadline_s: float) -> AnswerT | None:
        """Have a waiting request answered in another region as soon as one has room; None: a server answers here again, or the time
        is nearly over."""
        place = running.permit.enter_room(_AGAIN_S)
        try:
            while not self._servers.is_answering and (left_s := deadline_s - self._now_s()) > _AGAIN_S:
                await asyncio.sleep(_AGAIN_S)
                if not self._regions.would_take(running, left_s=left_s - _AGAIN_S):
                    continue
                answer = await self._leave(request, running, deadline_s)
                if answer is not None:
                    return answer
        finally:
            place.leave()
        return None

    async def _leave(
        self, request: SendableOn[AnswerT], running: AuthorizedRequest, deadline_s: float, *, is_model_missing: bool = False
    ) -> AnswerT | None:
        """Have another region answer a request, and note which one did; None: none has. One under which a process has died stays,
        whatever else it is refused for, and so does one that is guilty. Of suspects others are equal to, most are innocent."""
        if not self._regions.is_any_well or running.is_suspect or await self._dispatch.deaths.refuses(request, running.call):
            return None
        running.leave_region()
        return await self._regions.ask(request, running, left_s=deadline_s - self._now_s(), is_model_missing=is_model_missing)

    def _may_leave(self, request: SendableOn[AnswerT], running: AuthorizedRequest) -> bool:
        call, permit = running.call, running.permit
        if call.sequence_id or call.uses_shared_memory:
            return False
        return not permit.stays_in_region and request.body_bytes() <= MAX_BODY_BYTES

    def may_leave(self, running: AuthorizedRequest) -> bool:
        """Whether a request that is being computed here, or the one whose batch it is, may leave, and another region is well."""
        whole = running.batch_of or running
        return whole in self._here and not whole.is_suspect and self._regions.is_any_well

    def _require_loaded(self, running: AuthorizedRequest) -> None:
        """Require that a fleet need not load anything for another region's request. Raises ModelNotFound."""
        catalogue = self._dispatch.catalogue
        if catalogue is not None and not catalogue.is_loaded(running.model_name):
            raise ModelNotFound(f"model '{running.model_name}' is not loaded in this region")

    def _hurry(self, scope: asyncio.Timeout, running: AuthorizedRequest, deadline_s: float) -> None:
        """Take a request back that still waits for its turn, while another region has time to answer it."""
        if running.permit.is_waiting and self._regions.would_take(running, left_s=deadline_s - self._now_s()):
            scope.reschedule(asyncio.get_running_loop().time())

    def silence_changed(self, is_silent: bool, server: str) -> None:
        """See `ServerObserver`: what may be computed twice is taken back once no server answers, if another region may help."""
        if not is_silent or self._servers.is_answering or not self._regions.is_any_well:
            return
        now_s = asyncio.get_running_loop().time()
        for running, scope in tuple(self._here.items()):
            if is_repeatable(running.call, running):
                scope.reschedule(now_s)

    def up(self, upstream: Upstream, server: str) -> None:
        """See `ServerObserver`."""

    def down(self, reason: str, server: str) -> None:
        """See `ServerObserver`. What a server that ends leaves waits for the next: its process may have died of it."""

    def left(self, server: str) -> None:
        """See `ServerObserver`."""


async def _for_another(running: AuthorizedRequest, answering: Awaitable[AnswerT]) -> AnswerT:
    """Answer a request of another region, which takes a refusal for want of room or of a server for one that was not computed.

    Raises UpstreamFailed: it may have been.
    """
    try:
        answer = await answering
    except UpstreamUnavailable as exc:
        if running.sent_s is None or fault_of_error(exc) not in _MAY_BE_COMPUTED:
            raise
        raise UpstreamFailed(str(exc)) from exc
    except ModelLoadFailed as exc:
        raise ModelNotFound(str(exc)) from exc
    if fault_in(answer) is Fault.CONNECTION_LOST:
        raise UpstreamFailed("Triton was lost while it had the request, which it may have computed")
    return answer


def leaves_for_error(error: ControlPlaneError, running: AuthorizedRequest) -> bool:
    """Whether a request may leave its region that this one has refused or failed with `error`."""
    if isinstance(error, Overloaded | ModelNotFound | ModelLoadFailed):
        return True
    if not isinstance(error, UpstreamUnavailable):
        return False
    return running.sent_s is None or _leaves_for(fault_of_error(error), running)


def _leaves_for(fault: Fault, running: AuthorizedRequest) -> bool:
    """Whether a request may leave its region after this fault: it was not computed, or does no harm if it is computed twice."""
    resend = FAULTS[fault].resend
    if resend is Resend.NEVER or fault in DEATHS:
        return False
    return resend is Resend.ALWAYS or is_repeatable(running.call, running)
