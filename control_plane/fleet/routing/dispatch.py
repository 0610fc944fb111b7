"""Sends each request of a fleet to a server, and retries where that is safe; `inference/inference` calls it
once a request may go to Triton.

A request goes once more if the server says that it lacks the model (another process may have unloaded it), or
if the connection was lost and the request cannot have been computed, or computing it twice does no harm. Each
cause is retried once.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelNotFound, UpstreamUnavailable
from control_plane.core.infer_call import InferCall, Outcome, SendFailure
from control_plane.fleet.routing.model_router import ModelRouter
from control_plane.fleet.routing.workloads import RequestClassifier, RoutingHint
from control_plane.fleet.view.catalogue import FleetCatalogue
from control_plane.fleet.view.reservations import Reservation
from control_plane.inference.inference import GenerateRequest, ServerRequest
from control_plane.inference.running_request import AuthorizedRequest
from control_plane.inference.server_fault import dead_stub_model_in, dead_stub_model_of, send_failure_of
from control_plane.protocols.http1 import HttpAnswer
from control_plane.triton.ports import HttpStream, Upstream

AnswerT = TypeVar("AnswerT")


class FleetDispatcher:
    """Dispatcher of a fleet: finds a replica for each request, sends it there, and reports what came of it.
    It implements `inference/inference.Dispatch`."""

    def __init__(
        self, router: ModelRouter, *, catalogue: FleetCatalogue | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`now_s` is the event loop's time."""
        self.catalogue = catalogue
        self._router = router
        self._workloads = RequestClassifier(router.state.fleet)
        self._now_s = now_s

    async def send(
        self, request: ServerRequest[AnswerT], call: InferCall, *, timeout_s: float, running: AuthorizedRequest | None = None
    ) -> AnswerT:
        """Send a unary request to a replica, and return the answer.

        Raises UpstreamUnavailable: the connection was lost and the request must not be repeated. Otherwise
        raises as `ModelRouter.reservation`. If it is cancelled, the request's slot is released.
        """
        deadline_s = self._now_s() + timeout_s
        aim = self._workloads.aim(call, running)
        resent: set[SendFailure | Outcome] = set()
        while True:
            reservation = await self._reserve(call, running, deadline_s=deadline_s, aim=aim)
            # Assumed until an answer or an error comes: a timeout or a cancellation ends the `try` with
            # neither.
            loss: SendFailure | None = SendFailure.TIMED_OUT
            outcome, answer = Outcome.FAILED, None
            try:
                answer = await request.send(reservation.upstream, timeout_s=deadline_s - self._now_s())
                loss, outcome = send_failure_of(answer), request.outcome(answer)
            except UpstreamUnavailable as exc:
                loss = _loss(exc)
                if loss in resent or not _may_repeat(call, running, loss, outcome):
                    raise
            except ControlPlaneError:
                raise
            except Exception:
                loss = SendFailure.CONNECTION_LOST  # a failure at once is one too, and must eject the server
                raise
            finally:
                self._end(reservation, call, answer, loss, has_answered=outcome is Outcome.ANSWERED)
            why = loss or outcome
            if answer is not None and (why in resent or not _may_repeat(call, running, loss, outcome)):
                return answer
            if outcome is Outcome.MODEL_NOT_FOUND:
                self._router.is_missing(reservation)
            # Each cause is retried once, so that a request cannot go round for ever.
            resent.add(why)

    async def _reserve(self, call: InferCall, running: AuthorizedRequest | None, *, deadline_s: float, aim: RoutingHint) -> Reservation:
        """Acquire a slot at a replica. The request's own time starts after that, so nobody is charged for
        waiting for a load."""
        if running is not None:
            running.sent_s = None
        reservation = await self._router.acquire(call, deadline_s=deadline_s, aim=aim)
        if running is not None:
            running.sent(reservation.server.name)
        return reservation

    def _end(self, reservation: Reservation, call: InferCall, answer: object, loss: SendFailure | None, *, has_answered: bool) -> None:
        """Release the slot, and tell residency how it went. With `has_answered` the request succeeded, so its
        duration says something."""
        reservation.release(answered=has_answered)
        if loss is SendFailure.TIMED_OUT:
            self._router.state.ejection.gave_up(reservation)
        elif loss is not None:
            self._router.lost(reservation, is_gone=loss is SendFailure.NOT_SENT)
        else:
            self._router.answered(call, reservation)
            if not has_answered and (model := dead_stub_model_of(answer)) is not None:
                self._router.has_died(reservation, model)

    async def stream(
        self, request: GenerateRequest, call: InferCall, *, timeout_s: float, running: AuthorizedRequest | None = None
    ) -> HttpAnswer | HttpStream:
        """Start a streamed response; its slot is released when the stream is closed. It is retried only if it
        cannot have been computed."""
        deadline_s = self._now_s() + timeout_s
        aim = self._workloads.aim(call, running)
        # One retry at most. Once the head of a stream has come nothing is retried: the client has part of the
        # answer.
        for is_last in (False, True):
            reservation = await self._reserve(call, running, deadline_s=deadline_s, aim=aim)
            answer: HttpAnswer | HttpStream | None = None
            loss: SendFailure | None = SendFailure.TIMED_OUT
            try:
                answer = await request.stream(reservation.upstream, timeout_s=deadline_s - self._now_s())
                loss = None
            except UpstreamUnavailable as exc:
                loss = _loss(exc)
                if is_last or loss is not SendFailure.NOT_SENT:
                    raise
            except ControlPlaneError:
                raise
            except Exception:
                loss = SendFailure.CONNECTION_LOST
                raise
            finally:
                # A stream keeps its slot until it is closed.
                if answer is None or isinstance(answer, HttpAnswer):
                    self._end(reservation, call, answer, loss, has_answered=False)
            if answer is not None:
                return answer if isinstance(answer, HttpAnswer) else self._reserved(answer, call, reservation)
        raise AssertionError("the last attempt returns")

    def _reserved(self, stream: HttpStream, call: InferCall, reservation: Reservation) -> HttpStream:
        self._router.answered(call, reservation)  # the response's head has come
        return _ReservedStream(stream, reservation)

    @asynccontextmanager
    async def server_for(self, call: InferCall, *, timeout_s: float, running: AuthorizedRequest | None = None) -> AsyncIterator[Upstream]:
        """Context manager: a server with the model, whose slot is held for as long as the block lasts. Raises
        Overloaded."""
        reservation = await self._reserve(call, running, deadline_s=self._now_s() + timeout_s, aim=self._workloads.aim(call, running))
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
                self._router.is_missing(reservation)
            raise
        except DeadlineExceeded:
            self._router.state.ejection.gave_up(reservation)
            raise
        except ControlPlaneError as exc:
            self._router.answered(call, reservation)
            if (model := dead_stub_model_in(str(exc).encode())) is not None:
                self._router.has_died(reservation, model)
            raise
        finally:
            reservation.release(answered=False)

    async def reading(self, model: str, *, timeout_s: float) -> Upstream:
        """Return a server with the model, to ask about it; a model that is nowhere, but could be, is loaded
        for this."""
        reservation = await self._router.acquire(InferCall(model, "", "", ()), deadline_s=self._now_s() + timeout_s)
        reservation.release(answered=False)
        return reservation.upstream

    async def ready(self) -> set[str]:
        """Return the models with a ready replica."""
        return self._router.ready()


class _ReservedStream:
    """Streamed response (`triton/ports.HttpStream`) that holds its slot until it is closed."""

    def __init__(self, stream: HttpStream, reservation: Reservation) -> None:
        self.status = stream.status
        self.head = stream.head
        self._stream = stream
        self._reservation: Reservation | None = reservation

    async def receive(self) -> bytes | None:
        return await self._stream.receive()

    def close(self) -> None:
        self._stream.close()
        if self._reservation is not None:
            self._reservation.release(answered=False)
            self._reservation = None


def _loss(error: UpstreamUnavailable) -> SendFailure:
    return SendFailure.NOT_SENT if error.is_not_sent else SendFailure.CONNECTION_LOST


def _may_repeat(call: InferCall, running: AuthorizedRequest | None, loss: SendFailure | None, outcome: Outcome) -> bool:
    """Whether sending the request again may help and can do no harm: it was not computed, or it is
    idempotent."""
    if loss is None:
        # A request for a version that does not exist would fail anywhere: the model itself may well be there.
        return outcome is Outcome.MODEL_NOT_FOUND and not call.model_version
    if loss is SendFailure.CONNECTION_LOST:
        # Requests of a sequence change its state, so computing one twice would do harm.
        return running is not None and running.is_repeatable and not call.sequence_id
    return loss is SendFailure.NOT_SENT
