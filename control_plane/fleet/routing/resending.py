"""Decides whether a failed request of a fleet is sent to another replica, and records in the view what the fault says of the server.

`inference/retries/faults` is the table; this adds what only a fleet knows: whether there is another replica, and whether the retry
budget has tokens left. `fleet/routing/dispatch` asks for each request that failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from control_plane.core.infer_call import InferCall
from control_plane.core.model import ModelState
from control_plane.fleet.domain.health.overdue import may_hang
from control_plane.fleet.domain.routing.routing import has_other
from control_plane.fleet.routing.model_router import ModelRouter
from control_plane.fleet.routing.workloads import RoutingHint
from control_plane.fleet.view.reservations import Reservation
from control_plane.inference.domain.queries_of_death import StubDeaths
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.retries.attempt import Send, is_repeatable
from control_plane.inference.retries.faults import FAULTS, Conclusion, Fault, Resend, fault_of_recall, recall_of
from control_plane.inference.retries.retry_budget import RetryBudget, units_of
from control_plane.inference.retries.server_fault import dead_stub_model_of
from control_plane.triton.servers import NOTICED_S

AnswerT = TypeVar("AnswerT")

_MOST_RESENDS = 3
"""Resends of one request for all faults together (`FaultPolicy.times` bounds those for each): it cannot go round for ever."""
_GONE = frozenset((Fault.NOT_SENT, Fault.CONNECTION_LOST, Fault.MODEL_MISSING))
"""Faults of replicas that are dropped from the view, or may be: others are found, or loaded."""
_LOST = frozenset((Fault.CONNECTION_LOST, Fault.SERVER_SILENT, Fault.REPLICA_SILENT))
"""Faults of a server or replica that takes all its requests with it."""
_RECALLED = frozenset((Fault.SERVER_SILENT, Fault.REPLICA_SILENT))
"""Faults for which requests are taken back only: that they may be sent again was decided before that."""
_LOOK_EVERY_S = 0.05
"""Time between two looks whether a server is seen to be down."""


class Resending:
    """Decider of one process on what is sent to another replica."""

    def __init__(self, router: ModelRouter, budget: RetryBudget, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._router = router
        self._budget = budget
        self._now_s = now_s
        self._stub_deaths = StubDeaths()

    def may_resend(
        self,
        fault: Fault,
        call: InferCall,
        running: AuthorizedRequest | None,
        reservation: Reservation,
        hint: RoutingHint,
    ) -> bool:
        """Whether the request, which had this `hint`, may be sent another time, for which the retry budget is charged."""
        policy, resent = FAULTS[fault], hint.resent
        if policy.resend is Resend.NEVER or resent.count(fault) >= policy.times or len(resent) >= _MOST_RESENDS:
            return False
        # A request for a version that does not exist would fail anywhere: the model itself may well be there.
        if fault is Fault.MODEL_MISSING and call.model_version:
            return False
        if policy.resend is not Resend.ALWAYS and not is_repeatable(call, running):
            return False
        if not self._has_elsewhere(fault, reservation, self.unfit(reservation, hint)):
            return False
        if not policy.is_budgeted:
            return True
        if fault in _LOST:
            return self._budget.try_resend_lost(units_of(running), server=reservation.server.name, began_s=reservation.started_s)
        return self._budget.try_spend(units_of(running))

    def recallable(
        self, send: Send[AnswerT], call: InferCall, running: AuthorizedRequest | None, reservation: Reservation, hint: RoutingHint
    ) -> Send[AnswerT]:
        """Return one send of a request, which is taken back if its server falls silent and it may be sent again: that is
        decided, and the budget charged, before anything is cancelled."""
        if not is_repeatable(call, running):
            return send
        return self._router.state.recalls.recallable(
            send, reservation, lambda cause: self.may_resend(fault_of_recall(cause), call, running, reservation, hint)
        )

    def hint_after(
        self,
        fault: Fault,
        call: InferCall,
        running: AuthorizedRequest | None,
        reservation: Reservation,
        hint: RoutingHint,
        *,
        is_recall: bool = False,
    ) -> RoutingHint | None:
        """Return where to send a request next, to another server than that and to no dead replica; None: nowhere.
        `is_recall`: the request was taken back, so the server may have it still."""
        is_recalled = fault in _RECALLED or is_recall
        if fault not in _RECALLED and not self.may_resend(fault, call, running, reservation, hint):
            return None
        if is_recalled and running is not None:
            running.permit.forsake()
        avoid = hint.avoid | self._dead_or_doubted(reservation.replica.model)
        # The view avoids a server for as long as it is silent; a replica that is loaded anew is another one.
        if fault is not Fault.SERVER_SILENT and not reservation.replica.is_dead:
            avoid |= {reservation.server.name}
        return replace(hint, avoid=avoid, resent=(*hint.resent, fault), may_probe=False)

    def unfit(self, reservation: Reservation, hint: RoutingHint) -> frozenset[str]:
        """Servers that would not do for another send of a request that is here: this one, those that failed it, and
        those whose stubs are dead."""
        return hint.avoid | {reservation.server.name} | self._dead_or_doubted(reservation.replica.model)

    def _dead_or_doubted(self, model: str) -> frozenset[str]:
        return self.avoided(model) | self._router.state.doubts.avoided(model)

    def avoided(self, model: str) -> frozenset[str]:
        """Servers whose replicas of the model have lost their stubs, and are not loaded anew yet."""
        holders = self._router.state.fleet.holders.get(model, {})

        def has(server: str, stub: object) -> bool:
            return server in holders and stub == ((replica := holders[server].replicas[model]), replica.revived_s)

        return frozenset(server for server, stub in self._stub_deaths.dead_copies(model) if has(server, stub))

    def _has_elsewhere(self, fault: Fault, reservation: Reservation, avoid: frozenset[str]) -> bool:
        """Whether another replica may do better. What a server that is gone or a replica under repair leaves waits for one,
        if need be."""
        if fault in _GONE or not reservation.is_current or reservation.replica.is_dead:
            return True
        if fault is Fault.DEAD_STUB and any(
            each.state is ModelState.LOADING for _, each in self._router.state.fleet.replicas(reservation.replica.model)
        ):
            return True
        is_idle = FAULTS[fault].resend is Resend.IF_CAPACITY
        return has_other(self._router.state.fleet, reservation.replica.model, avoid, is_idle=is_idle)

    async def is_death(self, fault: Fault, error: Exception | None, reservation: Reservation, *, is_suspect: bool) -> bool:
        """Whether a process died while this request was in flight in it.

        A broken connection alone makes a suspect of a request. To find one guilty its server must be seen to be
        down.
        """
        if fault is Fault.DEAD_STUB:
            if (recall := recall_of(error)) is not None:
                return recall.is_suspect
            replica, began_s = reservation.replica, reservation.started_s
            if replica.was_dead_at(began_s) or (replica.has_hung and not may_hang(replica, sent_s=began_s)):
                return False
            stub = (replica, replica.revived_s)  # a replica that was loaded anew has another one
            return self._stub_deaths.was_in_flight(reservation.server.name, replica.model, stub, began_s=began_s, now_s=self._now_s())
        if fault is not Fault.CONNECTION_LOST or not is_suspect:
            return fault is Fault.CONNECTION_LOST
        until_s = self._now_s() + NOTICED_S
        while reservation.server.is_up and reservation.is_current and self._now_s() < until_s:
            await asyncio.sleep(_LOOK_EVERY_S)
        return not (reservation.server.is_up and reservation.is_current)

    def learn(self, fault: Fault, answer: object, call: InferCall, reservation: Reservation) -> None:
        """Tell the view what a fault says of the server; the request's reservation has been released."""
        match FAULTS[fault].conclusion:
            case Conclusion.SILENT:
                self._router.gave_up(reservation)
            case Conclusion.UNREACHABLE:
                self._router.lost(reservation, is_gone=True)
            case Conclusion.BROKEN:
                self._router.lost(reservation, is_gone=False)
            case Conclusion.STUB_DIED:
                self._router.answered(call, reservation, is_alive=False)
                if (dead := dead_stub_model_of(answer)) is not None:
                    self._router.note_dead_stub(reservation, dead)
            case Conclusion.LACKS_MODEL:
                self._router.answered(call, reservation)
                if not call.model_version:
                    self._router.note_missing(reservation)
            case Conclusion.NOTHING:
                self._router.answered(call, reservation)

    def learn_late(self, fault: Fault, came: object, reservation: Reservation) -> None:
        """Learn, as `learn` does, from a stream that has failed after its first piece: how long it took says nothing."""
        if (dead := dead_stub_model_of(came)) is not None:
            self._router.note_dead_stub(reservation, dead)
        elif FAULTS[fault].conclusion is Conclusion.BROKEN:
            self._router.lost(reservation, is_gone=False)
