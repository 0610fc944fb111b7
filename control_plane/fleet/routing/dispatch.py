"""Dispatch in a fleet: sends each request to a server, and to another one where that is safe and may help.

`inference/inference` calls it once a request may go to Triton. `inference/retries/faults` is the table of what may be sent again,
by which `fleet/routing/resending` decides; `inference/retries/queries_of_death` stops a request that kills one process after the
other.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelNotFound, UpstreamUnavailable
from control_plane.core.infer_call import InferCall
from control_plane.fleet.domain.routing.hedging import idle_server
from control_plane.fleet.routing.hedging import Hedging
from control_plane.fleet.routing.hung_requests import HungRequests
from control_plane.fleet.routing.model_router import ModelRouter, not_whole
from control_plane.fleet.routing.overdue_watch import OverdueWatch
from control_plane.fleet.routing.resending import Resending
from control_plane.fleet.routing.workloads import RequestClassifier, RoutingHint
from control_plane.fleet.view.catalogue import FleetCatalogue, sharded_lines
from control_plane.fleet.view.reservations import Reservation
from control_plane.inference.dispatch.held_stream import HeldStream
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.requests import GenerateRequest, ServerRequest
from control_plane.inference.retries.attempt import Attempt, Send, is_repeatable
from control_plane.inference.retries.faults import FAULTS, Fault, Resend, recall_of
from control_plane.inference.retries.queries_of_death import Hashable, QueriesOfDeath, StreamCase, Suspect
from control_plane.inference.retries.retry_budget import RetryBudget, units_of
from control_plane.inference.retries.server_fault import dead_stub_model_in
from control_plane.inference.sharded_models import SendsWholes
from control_plane.protocols.http1 import HttpAnswer
from control_plane.triton.ports import HttpStream, ModelStream, Upstream

AnswerT = TypeVar("AnswerT")


@dataclass(slots=True)
class _FleetAttempt(Attempt[AnswerT]):
    """Attempt at one replica of a fleet, with the slot that it holds there."""

    reservation: Reservation = field(kw_only=True)
    hint: RoutingHint = field(kw_only=True)
    was_hedged: bool = field(default=False, kw_only=True)


@dataclass(slots=True)
class _StreamEnding:
    """End of a fleet's stream; implements `inference/dispatch/held_stream.StreamEnding`."""

    _dispatch: FleetDispatcher
    _case: StreamCase
    _call: InferCall
    _reservation: Reservation
    _forget: Callable[[], None]

    async def is_death(self, fault: Fault, came: Exception | bytes) -> bool:
        resending, error = self._dispatch.resending, came if isinstance(came, Exception) else None
        resending.learn_late(fault, came, self._reservation)
        return await resending.is_death(fault, error, self._reservation, is_suspect=self._case.suspect is not None)

    def closed(self, fault: Fault | None) -> None:
        self._forget()
        self._reservation.release(answered=False)
        if fault is Fault.TIMED_OUT:
            self._dispatch.stream_gave_up(self._case, self._call, self._reservation)


class FleetDispatcher:
    """Dispatcher of a fleet: finds a replica for each request, sends it there, and reports what came of it.
    It implements `inference/dispatch/dispatch.Dispatch`."""

    def __init__(
        self,
        router: ModelRouter,
        *,
        catalogue: FleetCatalogue | None = None,
        hedging: bool = True,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now_s` is the event loop's time. Without `hedging` only routes ask for it."""
        self.catalogue = catalogue
        self.retries = RetryBudget(now_s=now_s)
        self.deaths = QueriesOfDeath(now_s=now_s)
        self._router = router
        self.streams = router.state.streams
        self.resending = Resending(router, self.retries, now_s=now_s)
        self.hedging = Hedging(router, self.retries, self.resending, is_on=hedging)
        self.hung = HungRequests(self.deaths, doubted=router.state.doubts.avoided)
        self.overdue = OverdueWatch(router, self.hung)
        self._workloads = RequestClassifier(router.state.fleet)
        self.sharded: SendsWholes | None = None
        """Answers the requests of sharded models."""
        self._now_s = now_s

    def send(
        self, request: ServerRequest[AnswerT], call: InferCall, *, timeout_s: float, running: AuthorizedRequest | None = None
    ) -> Awaitable[AnswerT]:
        """Send a unary request to a replica, and return the answer.

        Raises UpstreamUnavailable: the connection was lost and the request must not be repeated.
        QueryOfDeath: processes have died under it. Otherwise raises as `ModelRouter.acquire`. If it is cancelled,
        the request's slot is released.
        """
        facts = self._router.state.fleet.models.get(call.model_name)
        if facts is not None and facts.spec.sharded and not self._router.state.specs.is_suspended(facts.name):
            return self._send_whole(request, call, facts.spec.sharded, timeout_s, running)
        if running is not None and facts is not None and facts.spec.is_repeatable:
            running.is_repeatable = True
        hint = self._workloads.hint(call, running)
        hint.may_probe = is_repeatable(call, running)
        # No coroutine of its own: every request would be passed through it.
        return self._sent(self._attempt, request, call, running, timeout_s=timeout_s, hint=hint)

    async def _send_whole(self, request: Any, call: InferCall, config: str, timeout_s: float, running: AuthorizedRequest | None) -> Any:
        if self.sharded is None or running is None:
            raise not_whole(call.model_name)
        return await self.sharded.send(request, call, config, timeout_s=timeout_s, running=running)

    def stream(
        self, request: GenerateRequest, call: InferCall, *, timeout_s: float, running: AuthorizedRequest | None = None
    ) -> Awaitable[HttpAnswer | HttpStream]:
        """Start a streamed response; its slot is released when the stream is closed. It is sent again where any other request
        is; once the head of a stream has come, never: the client has part of the answer."""
        hint = self._workloads.hint(call, running)
        return self._sent(self._attempt_stream, request, call, running, timeout_s=timeout_s, hint=hint)

    async def _sent(
        self,
        attempted: Callable[..., Awaitable[_FleetAttempt[AnswerT]]],
        request: Hashable,
        call: InferCall,
        running: AuthorizedRequest | None,
        *,
        timeout_s: float,
        hint: RoutingHint,
    ) -> AnswerT:
        """Attempt a request until it is answered, or need not be sent again."""
        deadline_s = self._now_s() + timeout_s
        self.retries.asked(units_of(running))
        while True:
            if self.hung.watches(call.model_name):
                await self.hung.verdict(request, call, deadline_s=deadline_s)
            if self.deaths.watches(call.model_name):
                attempt = await self._in_turn(attempted, request, call, running, deadline_s=deadline_s, hint=hint)
            else:
                attempt = await attempted(request, call, running, deadline_s=deadline_s, hint=hint)
                if attempt.fault is not None:
                    await self._judge(request, call, running, attempt, None)
            next_hint = self._hint_after(attempt, call, running)
            if next_hint is None:
                return attempt.result()
            hint = next_hint

    async def _in_turn(
        self,
        attempted: Callable[..., Awaitable[_FleetAttempt[AnswerT]]],
        request: Hashable,
        call: InferCall,
        running: AuthorizedRequest | None,
        *,
        deadline_s: float,
        hint: RoutingHint,
    ) -> _FleetAttempt[AnswerT]:
        """Attempt a request to a model of which some are suspect. Raises QueryOfDeath: this one is guilty."""
        async with self.deaths.turn(request, call, timeout_s=deadline_s - self._now_s()) as suspect:
            if suspect is not None:
                hint = replace(hint, avoid=hint.avoid | self.resending.avoided(call.model_name), may_probe=False)
            attempt = await attempted(request, call, running, deadline_s=deadline_s, hint=hint, suspect=suspect)
            await self._judge(request, call, running, attempt, suspect)
        return attempt

    async def _attempt(
        self,
        request: ServerRequest[AnswerT],
        call: InferCall,
        running: AuthorizedRequest | None,
        *,
        deadline_s: float,
        hint: RoutingHint,
        suspect: Suspect | None = None,
    ) -> _FleetAttempt[AnswerT]:
        """Send a request to a replica, and tell the view how it went. One that is late may be hedged; the attempt is then that of
        the server that answered."""
        reservation = await self._reserve(call, running, deadline_s=deadline_s, hint=hint)
        attempt: _FleetAttempt[AnswerT] = _FleetAttempt(reservation=reservation, hint=hint)
        if self.hedging.is_open_for(running) and not self.deaths.watches(call.model_name):
            send: Send[AnswerT] = partial(self.hedging.send, request, call, running, attempt)
        else:
            send = self.resending.recallable(request.send, call, running, reservation, hint)
        try:
            await attempt.run(send, reservation.upstream, timeout_s=deadline_s - self._now_s())
        finally:
            is_interrupted = running is not None and running.permit.is_interrupted
            attempt.reservation.release(answered=attempt.fault is None and not is_interrupted)
            self._learn(call, attempt)
            if attempt.fault is Fault.TIMED_OUT:
                self._gave_up(request, call, attempt.reservation, suspect)
        return attempt

    async def _attempt_stream(
        self,
        request: GenerateRequest,
        call: InferCall,
        running: AuthorizedRequest | None,
        *,
        deadline_s: float,
        hint: RoutingHint,
        suspect: Suspect | None = None,
    ) -> _FleetAttempt[HttpAnswer | ModelStream]:
        """Start a streamed response at a replica, and tell the view how that went."""
        reservation = await self._reserve(call, running, deadline_s=deadline_s, hint=hint)
        attempt: _FleetAttempt[HttpAnswer | ModelStream] = _FleetAttempt(reservation=reservation, hint=hint)
        send: Send[HttpAnswer | ModelStream] = self.resending.recallable(request.stream, call, running, reservation, hint)

        def begin(server: Upstream, /, *, timeout_s: float) -> Awaitable[HttpAnswer | ModelStream]:
            return self.streams.begin(reservation.server.name, call.model_name, send(server, timeout_s=timeout_s))

        try:
            await attempt.run(begin, reservation.upstream, timeout_s=deadline_s - self._now_s())
        finally:
            # A stream keeps its slot until it is closed; how long one takes says nothing of its model.
            if attempt.answer is None or isinstance(attempt.answer, HttpAnswer):
                reservation.release(answered=False)
            self._learn(call, attempt)
            if attempt.fault is Fault.TIMED_OUT:
                self._gave_up(request, call, reservation, suspect)
        if attempt.fault is None and not isinstance(answer := attempt.result(), HttpAnswer):
            case = self.deaths.stream_begins(request, call, reservation.server.name, suspect)
            forget = self.streams.add(reservation.server.name, call.model_name, answer)
            attempt.answer = HeldStream(answer, case, _StreamEnding(self, case, call, reservation, forget))
        return attempt

    def _gave_up(self, request: Hashable, call: InferCall, reservation: Reservation, suspect: Suspect | None) -> None:
        asked = request if suspect is None else suspect.digest
        self.hung.gave_up(asked, call, reservation, was_suspect=suspect is not None, now_s=self._now_s())

    def stream_gave_up(self, case: StreamCase, call: InferCall, reservation: Reservation) -> None:
        """Note that a caller has waited in vain for the next piece of a stream, which has been closed."""
        self._router.gave_up(reservation)
        if case.digest is not None:
            self.hung.gave_up(case.digest, call, reservation, was_suspect=case.suspect is not None, now_s=self._now_s())

    def _learn(self, call: InferCall, attempt: _FleetAttempt[AnswerT]) -> None:
        if attempt.fault is None:
            self._router.answered(call, attempt.reservation)
        else:
            self.resending.learn(attempt.fault, attempt.error or attempt.answer, call, attempt.reservation)

    async def _judge(
        self,
        request: Hashable,
        call: InferCall,
        running: AuthorizedRequest | None,
        attempt: _FleetAttempt[AnswerT],
        suspect: Suspect | None,
    ) -> None:
        """Note whether a process died under the request. Raises QueryOfDeath: it was the second."""
        fault, reservation = attempt.fault, attempt.reservation
        if fault is None:
            if suspect is not None and not suspect.is_stream:
                self.deaths.answered(suspect)
            return
        if fault is Fault.DEAD_STUB and running is not None and recall_of(attempt.error) is not None:
            running.permit.forsake()  # nobody goes on with what a dead process had
        if await self.resending.is_death(fault, attempt.error, reservation, is_suspect=suspect is not None):
            if running is not None:
                running.note_death()
            is_stub = fault is Fault.DEAD_STUB
            await self.deaths.died(request, call, reservation.server.name, suspect=suspect, is_stub=is_stub)

    def _hint_after(
        self,
        attempt: _FleetAttempt[AnswerT],
        call: InferCall,
        running: AuthorizedRequest | None,
    ) -> RoutingHint | None:
        """Where to send the request next; None: the attempt was the last."""
        fault = attempt.fault
        if fault is None or (attempt.was_hedged and not _may_go_to_a_third(fault)):
            return None
        is_recall = recall_of(attempt.error) is not None
        return self.resending.hint_after(fault, call, running, attempt.reservation, attempt.hint, is_recall=is_recall)

    async def _reserve(self, call: InferCall, running: AuthorizedRequest | None, *, deadline_s: float, hint: RoutingHint) -> Reservation:
        """Acquire a slot at a replica. The request's own time starts after that, so nobody is charged for
        waiting for a load."""
        if running is not None:
            running.sent_s = None
        enter = None if running is None else running.permit.enter_room
        reservation = await self._router.acquire(call, deadline_s=deadline_s, hint=hint, enter_room=enter)
        if running is not None:
            running.sent(reservation.server.name)
        return reservation

    @asynccontextmanager
    async def server_for(self, call: InferCall, *, timeout_s: float, running: AuthorizedRequest | None = None) -> AsyncIterator[Upstream]:
        """Context manager: a server with the model, whose slot is held for as long as the block lasts; the view is told how that
        ends. Raises Overloaded."""
        self.retries.asked(units_of(running))
        deadline_s, hint = self._now_s() + timeout_s, self._workloads.hint(call, running)
        reservation = await self._reserve(call, running, deadline_s=deadline_s, hint=hint)
        try:
            yield reservation.upstream
            self._router.answered(call, reservation)
        # A lost connection, or an answer of Triton's own (then it was sent).
        except UpstreamUnavailable as exc:
            if exc.is_not_sent:
                self._router.lost(reservation, is_gone=True)
            raise
        except ModelNotFound:
            if not call.model_version:
                self._router.note_missing(reservation)
            raise
        except DeadlineExceeded:
            self._router.gave_up(reservation)
            raise
        except ControlPlaneError as exc:
            self._router.answered(call, reservation)
            if (model := dead_stub_model_in(str(exc).encode())) is not None:
                self._router.note_dead_stub(reservation, model)
            raise
        finally:
            reservation.release(answered=False)

    def met_dead_stub(self, server: str, model: str, *, sent_s: float) -> None:
        self._router.met_dead_stub(server, model)

    def idle_replica(self, call: InferCall) -> AbstractContextManager[Upstream] | None:
        """Reserve a replica that has nothing to do, for as long as the block lasts; None if there is none."""
        state, model = self._router.state, call.model_name
        if self.deaths.watches(model) or state.specs.is_suspended(model):
            return None
        avoided = state.doubts.avoided(model) | {name for name, server in state.fleet.servers.items() if server.is_avoided}
        server = idle_server(state.fleet, model, avoid=avoided)
        reservation = None if server is None else state.reserve(model, server.name)
        return None if reservation is None else _idle(reservation)

    async def reading(self, model: str, *, timeout_s: float) -> Upstream:
        """Return a server with the model, to ask about it; a model that is nowhere, but could be, is loaded
        for this."""
        reservation = await self._router.acquire(InferCall(model, "", "", ()), deadline_s=self._now_s() + timeout_s)
        reservation.release(answered=False)
        return reservation.upstream

    def awaited(self) -> Iterator[tuple[str, str, float]]:
        """Yield what requests have waited for for long, as `ModelRouter.awaited` does."""
        return self._router.awaited()

    def given_up(self) -> Iterator[tuple[str, str, float]]:
        """Yield what callers have given up and replicas may work on, as `ModelRouter.given_up` does."""
        return self._router.given_up()

    def ready_in_s(self, model: str) -> float:
        return self._router.ready_in_s(model)

    async def ready(self) -> set[str]:
        """Return the models with a ready replica, and the sharded ones all of whose parts have one."""
        return self._router.ready() | {line.name for line in sharded_lines(self._router.state)}


@contextmanager
def _idle(reservation: Reservation) -> Iterator[Upstream]:
    try:
        yield reservation.upstream
    finally:
        reservation.release(answered=False)


def _may_go_to_a_third(fault: Fault) -> bool:
    """Whether a hedged request, which has had two servers, may be sent to another one: not if two processes may have
    died under it. One that says nothing has not died."""
    return fault in (Fault.SERVER_SILENT, Fault.REPLICA_SILENT) or FAULTS[fault].resend is Resend.ALWAYS
