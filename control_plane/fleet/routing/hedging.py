"""Carries out hedges: sends a late request to a second server as well, takes the first good answer, and ends the other send.
`fleet/domain/routing/hedging` decides; `fleet/routing/dispatch` sends through this.

Over gRPC the loser is cancelled, after the pause that every cancellation has. Over HTTP Triton cannot be told, so the loser's answer
is read and dropped. Its server counts as busy until then. The loser's answer counts neither for service times nor for outlier
detection, is never cached, and is not charged.
"""

from __future__ import annotations

import asyncio
from itertools import count
from math import inf
from typing import Any, Generic, Protocol, TypeVar, cast

from control_plane.concurrency.task_owner import TaskOwner
from control_plane.core.errors import DeadlineExceeded
from control_plane.core.infer_call import Frontend, InferCall, Outcome
from control_plane.fleet.domain.counts import Hedge
from control_plane.fleet.domain.routing.hedging import HedgeDelays, idle_server, looks_again_after_s, may_be_hedged, size_class
from control_plane.fleet.routing.lingering import LingeringReservations
from control_plane.fleet.routing.model_router import ModelRouter
from control_plane.fleet.routing.racing_send import RacingSend, SlottedRequest, first_good
from control_plane.fleet.routing.resending import Resending
from control_plane.fleet.routing.workloads import RoutingHint
from control_plane.fleet.view.reservations import Reservation
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.requests import ServerRequest
from control_plane.inference.retries.attempt import Send
from control_plane.inference.retries.faults import Fault, fault_in, fault_of_error
from control_plane.inference.retries.retry_budget import RetryBudget, RetryKind, units_of
from control_plane.objects.domain.route import HedgingPolicy
from control_plane.triton.ports import CANCEL_AFTER_S, Upstream

AnswerT = TypeVar("AnswerT")

_CANCELLED_S = 0.9 * CANCEL_AFTER_S
"""A send over gRPC that is over no sooner after it lost was cancelled: clocks of timers are not exact."""
_FORGETS_EVERY_S = 60.0


class HedgedAttempt(Protocol):
    """One send of a request as its dispatcher sees it, which becomes two where it is hedged."""

    reservation: Reservation
    """Reservation at the server that answers."""
    hint: RoutingHint
    was_hedged: bool


class Hedging:
    """Hedged requests of one process: sends requests, and late ones to a second server as well."""

    def __init__(self, router: ModelRouter, budget: RetryBudget, resending: Resending, *, is_on: bool = True) -> None:
        """Without `is_on` only requests are hedged whose route asks for it."""
        self.state = router.state
        self.tasks = TaskOwner("requests cannot be hedged")
        self.delays = HedgeDelays()
        self.lingering = LingeringReservations(self.state.now_s)
        self._budget = budget
        self.resending = resending
        self._is_on = is_on

    async def run(self) -> None:
        """Own the sends of hedged requests, and forget models that are gone, until cancelled."""
        async with self.tasks.open():
            while True:
                await asyncio.sleep(_FORGETS_EVERY_S)
                self.delays.retain_only(self.state.fleet.models)

    async def send(
        self,
        request: ServerRequest[AnswerT],
        call: InferCall,
        running: AuthorizedRequest | None,
        attempt: HedgedAttempt,
        server: Upstream,
        /,
        *,
        timeout_s: float,
    ) -> AnswerT:
        """Send a request to the `server` of its attempt, and to another one if it is late; return the first good answer.
        The reservation of the attempt is then that of the server that it came from; the other one is released here.

        Without a good answer the result is that of the first send, and so is what it raises.
        """
        if running is None or not self.is_open_for(running) or not self._may_be_hedged(call, running):
            send = self.resending.recallable(request.send, call, running, attempt.reservation, attempt.hint)
            return await send(server, timeout_s=timeout_s)
        race = _Race(self, cast("SlottedRequest[AnswerT]", request), call, running, attempt, self.state.now_s() + timeout_s)
        hedge_after_s = race.hedge_after_s()
        return await race.send_alone() if hedge_after_s == inf else await race.run(hedge_after_s)

    def is_open_for(self, running: AuthorizedRequest | None) -> bool:
        """Whether `send` may do more than send: a quick check for the requests of all models. Work that callers interrupt is late
        for that alone, and says nothing of when others are."""
        return running is not None and self.tasks.is_open and running.is_repeatable and not running.permit.is_interrupted

    def _may_be_hedged(self, call: InferCall, running: AuthorizedRequest) -> bool:
        model, state = call.model_name, self.state
        # Requests out of a caller's stream are answered in their order, so one that is late holds up the others.
        if len(state.fleet.holders.get(model, ())) < 2 or running.frontend is Frontend.GRPC_STREAM:
            return False
        if running.hedging.twice_from_s is None and not self.is_on_for(running.hedging):
            return False
        return may_be_hedged(call, is_repeatable=running.is_repeatable, has_sequences=state.specs.has_sequences(model))

    def is_on_for(self, policy: HedgingPolicy) -> bool:
        """Whether late requests of this policy are hedged."""
        return self._is_on if policy.is_on is None else policy.is_on

    def may_spend(self, units: float) -> bool:
        """Spend compute units of the retry budget on a hedge; False where it has not so many."""
        return self._budget.try_spend(units, RetryKind.HEDGE)

    def learn(self, call: InferCall, loser: RacingSend[AnswerT]) -> None:
        """Tell the view how a loser failed, if it did; that it answered says nothing."""
        result = loser.result
        fault = fault_of_error(result) if isinstance(result, Exception) else fault_in(result)
        if result is not None and fault is not None:
            self.resending.learn(fault, result, call, loser.reservation)


class _Race(Generic[AnswerT]):
    """Race between the two sends of one request, of which the second begins only if the first is late."""

    def __init__(
        self,
        hedging: Hedging,
        request: SlottedRequest[AnswerT],
        call: InferCall,
        running: AuthorizedRequest,
        attempt: HedgedAttempt,
        deadline_s: float,
    ) -> None:
        self._hedging = hedging
        self._request = request
        self._call = call
        self._running = running
        self._attempt = attempt
        self._reservation = attempt.reservation
        self._deadline_s = deadline_s
        self._size = size_class(call)
        self._policy = running.hedging
        self._lost_s = inf
        """When one of the request's sends lost against the other."""

    def hedge_after_s(self) -> float:
        """Zero for a request that goes to two servers from the start: its route asks for that, and it takes long
        enough."""
        twice_from_s = self._policy.twice_from_s
        if twice_from_s is not None and self._expected_s() >= twice_from_s:
            return 0.0
        return self._hedging.delays.delay_s(self._call.model_name, self._size) if self._hedging.is_on_for(self._policy) else inf

    async def send_alone(self) -> AnswerT:
        """Send it to its server only, and note how long that took."""
        try:
            send = self._recallable(self._request.send, self._reservation)
            answer = await send(self._reservation.upstream, timeout_s=self._left_s())
        except (asyncio.CancelledError, DeadlineExceeded):
            self._note_wait()
            raise
        self._note(answer)
        return answer

    async def run(self, hedge_after_s: float) -> AnswerT:
        """Send it, and once more after `hedge_after_s`, if it has not been answered and another server is idle."""
        first, second = self._send(self._reservation), None
        try:
            try:
                second = await self._second(first, hedge_after_s)
            finally:
                self._hedging.state.idle_waiters.leave(self, self._call.model_name)
            winner = await first_good([first] if second is None else [first, second])
            return self._settled(first, second, winner)
        except asyncio.CancelledError:
            self._note_wait()
            first.task.cancel()
            if second is not None:
                self._end(second)
            raise

    async def _second(self, first: RacingSend[AnswerT], hedge_after_s: float) -> RacingSend[AnswerT] | None:
        """Begin the second send when it is time for it and a server is idle; None if the first has ended before."""
        hedging, model = self._hedging, self._call.model_name
        is_asked_for, after_s = hedge_after_s == 0.0, hedge_after_s
        awaited: tuple[asyncio.Future[Any], ...] = (first.task,)
        for looks in count(1):
            if after_s > 0.0:
                await asyncio.wait(awaited, timeout=after_s, return_when=asyncio.FIRST_COMPLETED)
                # A turn of the loop for answers that have come: if this process was late, the server was not.
                await asyncio.sleep(0)
            if first.task.done() or not hedging.tasks.is_open:
                return None
            avoid = hedging.resending.unfit(self._reservation, self._attempt.hint)
            server = idle_server(hedging.state.fleet, model, avoid=avoid, pool=self._running.pool or None)
            if server is not None:
                # What a route asks to be computed twice is no retry, so the budget of retries is not asked.
                may_be_sent = is_asked_for or hedging.may_spend(self._units())
                second = hedging.state.reserve(model, server.name) if may_be_sent else None
                self._attempt.was_hedged = second is not None
                return None if second is None else self._send(second)
            if looks == 1:
                hedging.state.counts.hedges[Hedge.NO_IDLE_SERVER] += 1
            after_s = looks_again_after_s(looks)
            awaited = first.task, hedging.state.idle_waiters.next(self, model, avoid=avoid)
        raise AssertionError("it ends with the first send at the latest")

    def _send(self, reservation: Reservation) -> RacingSend[AnswerT]:
        hedging = self._hedging
        return RacingSend(
            self._request, self._running.permit, reservation, hedging.tasks,
            timeout_s=self._left_s(), recallable=self._recallable, lost=self._release_lost,
        )  # fmt: skip

    def _recallable(self, send: Send[AnswerT], reservation: Reservation) -> Send[AnswerT]:
        return self._hedging.resending.recallable(send, self._call, self._running, reservation, self._attempt.hint)

    def _settled(self, first: RacingSend[AnswerT], second: RacingSend[AnswerT] | None, winner: RacingSend[AnswerT] | None) -> AnswerT:
        """End what has lost, and return the answer. Raises what the first send raised, if no answer is good."""
        if second is not None:
            self._count(Hedge.FAILED if winner is None else Hedge.WON if winner is second else Hedge.LOST)
            loser = first if winner is second else second
            self._hedging.learn(self._call, loser)
            self._end(loser)
        if winner is None or winner is first:
            if isinstance(first.result, DeadlineExceeded):
                self._note_wait()
            answer = first.answer()
            self._note(answer)
            return answer
        self._attempt.reservation = winner.reservation
        self._running.server, self._running.sent_s = winner.reservation.server.name, winner.reservation.started_s
        self._note_wait()
        self._hedging.lingering.answered(winner.reservation)
        return winner.answer()

    def _end(self, loser: RacingSend[AnswerT]) -> None:
        self._lost_s = self._hedging.state.now_s()
        loser.lose()

    def _release_lost(self, reservation: Reservation) -> None:
        """Release the server of a send that has lost, at once if Triton has ended it."""
        if self._running.frontend is Frontend.GRPC and self._hedging.state.now_s() - self._lost_s >= _CANCELLED_S:
            self._hedging.lingering.hold(reservation)
        else:
            reservation.release(answered=False)

    def _count(self, hedge: Hedge) -> None:
        counts = self._hedging.state.counts
        counts.hedges[hedge] += 1
        counts.hedged_units += self._units()

    def _units(self) -> float:
        """Compute units that it counts for."""
        return units_of(self._running)

    def _expected_s(self) -> float:
        """Return the seconds that the request is expected to take at one server; as long as that is not known, its compute
        units, each a millisecond."""
        expected_s = self._hedging.delays.expected_s(self._call.model_name, self._size)
        if expected_s < inf:
            return expected_s
        return self._reservation.facts.service_s if self._running.units is None else self._running.units / 1e3

    def _left_s(self) -> float:
        return self._deadline_s - self._hedging.state.now_s()

    def _note(self, answer: AnswerT) -> None:
        """Count how long the first server took for a good answer, or was waited for; other errors say nothing."""
        if self._request.outcome(answer) is Outcome.ANSWERED:
            self._hedging.delays.note_answer(self._call.model_name, self._size, self._took_s())
            self._hedging.lingering.answered(self._reservation)
        elif fault_in(answer) is Fault.TIMED_OUT:
            self._note_wait()

    def _note_wait(self) -> None:
        self._hedging.delays.note_censored(self._call.model_name, self._size, self._took_s())

    def _took_s(self) -> float:
        return self._hedging.state.now_s() - self._reservation.started_s
