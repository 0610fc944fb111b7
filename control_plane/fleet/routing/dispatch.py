"""Sends each request to the server that it should go to, in a fleet; asked by `inference/inference` once a request may go to Triton.

Where a server says that it lacks what was there, which others may have unloaded, the request goes once more; so it does where the
server is gone, if it cannot have been computed there, or if that does no harm.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelNotFound, UpstreamUnavailable
from control_plane.core.infer_call import InferCall, Loss, Outcome
from control_plane.fleet.routing.residency import Residency
from control_plane.fleet.routing.workloads import Aim, Workloads
from control_plane.fleet.view.catalogue import FleetCatalogue
from control_plane.fleet.view.claims import Claim
from control_plane.inference.inference import GenerateRequest, ServerRequest
from control_plane.inference.running_request import RunningRequest
from control_plane.inference.server_fault import dead_model_in, dead_model_of, loss_of
from control_plane.protocols.http1 import HttpAnswer
from control_plane.triton.ports import HttpStream, Upstream

AnswerT = TypeVar("AnswerT")


class FleetDispatch:
    """`inference/inference.Dispatch`."""

    def __init__(
        self, residency: Residency, *, catalogue: FleetCatalogue | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`now_s` is the loop's time."""
        self.catalogue = catalogue
        self._residency = residency
        self._workloads = Workloads(residency.fleet)
        self._now_s = now_s

    async def send(
        self, request: ServerRequest[AnswerT], call: InferCall, *, timeout_s: float, running: RunningRequest | None = None
    ) -> AnswerT:
        deadline_s = self._now_s() + timeout_s
        aim = self._workloads.aim(call, running)
        resent: set[Loss | Outcome] = set()
        while True:
            claim = await self._claim(call, running, deadline_s=deadline_s, aim=aim)
            loss: Loss | None = Loss.SILENT
            outcome, answer = Outcome.FAILED, None
            try:
                answer = await request.send(claim.upstream, timeout_s=deadline_s - self._now_s())
                loss, outcome = loss_of(answer), request.outcome(answer)
            except UpstreamUnavailable as exc:
                loss = _loss(exc)
                if loss in resent or not _may_repeat(call, running, loss, outcome):
                    raise
            finally:
                self._end(claim, call, answer, loss, has_answered=outcome is Outcome.ANSWERED)
            why = loss or outcome
            if answer is not None and (why in resent or not _may_repeat(call, running, loss, outcome)):
                return answer
            if outcome is Outcome.MODEL_NOT_FOUND:
                self._residency.is_missing(claim)
            resent.add(why)

    async def _claim(self, call: InferCall, running: RunningRequest | None, *, deadline_s: float, aim: Aim) -> Claim:
        """A place where it goes at once: nobody is charged for a load."""
        if running is not None:
            running.sent_s = None
        claim = await self._residency.claim(call, deadline_s=deadline_s, aim=aim)
        if running is not None:
            running.sent(claim.server.name)
        return claim

    def _end(self, claim: Claim, call: InferCall, answer: object, loss: Loss | None, *, has_answered: bool) -> None:
        """`has_answered`: with success, so that the time that it took says something."""
        claim.release(answered=has_answered)
        if loss is Loss.SILENT:
            self._residency.gave_up(claim)
        elif loss is not None:
            self._residency.lost(claim, is_gone=loss is Loss.UNSENT)
        else:
            self._residency.answered(call, claim)
            if not has_answered and (model := dead_model_of(answer)) is not None:
                self._residency.has_died(claim, model)

    async def stream(
        self, request: GenerateRequest, call: InferCall, *, timeout_s: float, running: RunningRequest | None = None
    ) -> HttpAnswer | HttpStream:
        deadline_s = self._now_s() + timeout_s
        aim = self._workloads.aim(call, running)
        for is_last in (False, True):
            claim = await self._claim(call, running, deadline_s=deadline_s, aim=aim)
            answer: HttpAnswer | HttpStream | None = None
            loss: Loss | None = Loss.SILENT
            try:
                answer = await request.stream(claim.upstream, timeout_s=deadline_s - self._now_s())
                loss = None
            except UpstreamUnavailable as exc:
                loss = _loss(exc)
                if is_last or loss is not Loss.UNSENT:
                    raise
            finally:
                if answer is None or isinstance(answer, HttpAnswer):
                    self._end(claim, call, answer, loss, has_answered=False)
            if answer is not None:
                return answer if isinstance(answer, HttpAnswer) else self._claimed(answer, call, claim)
        raise AssertionError("the last attempt returns")

    def _claimed(self, stream: HttpStream, call: InferCall, claim: Claim) -> HttpStream:
        self._residency.answered(call, claim)  # its head is there
        return _ClaimedStream(stream, claim)

    @asynccontextmanager
    async def server_for(self, call: InferCall, *, timeout_s: float, running: RunningRequest | None = None) -> AsyncIterator[Upstream]:
        """A server with the model, for as long as the block lasts. Raises Overloaded."""
        claim = await self._claim(call, running, deadline_s=self._now_s() + timeout_s, aim=self._workloads.aim(call, running))
        try:
            yield claim.upstream
            self._residency.answered(call, claim)
        except UpstreamUnavailable as exc:  # which may be Triton's own answer, too, where it was sent
            if exc.is_unsent:
                self._residency.lost(claim, is_gone=True)
            raise
        except ModelNotFound:
            if not call.model_version:
                self._residency.is_missing(claim)
            raise
        except DeadlineExceeded:
            self._residency.gave_up(claim)
            raise
        except ControlPlaneError as exc:
            self._residency.answered(call, claim)
            if (model := dead_model_in(str(exc).encode())) is not None:
                self._residency.has_died(claim, model)
            raise
        finally:
            claim.release(answered=False)

    async def reading(self, model: str, *, timeout_s: float) -> Upstream:
        """A server with the model; of one that is nowhere, but could be, the one that loads it for this."""
        claim = await self._residency.claim(InferCall(model, "", "", ()), deadline_s=self._now_s() + timeout_s)
        claim.release(answered=False)
        return claim.upstream

    async def ready(self) -> set[str]:
        return self._residency.ready()


class _ClaimedStream:
    """`triton/ports.HttpStream` that keeps its place until it is closed."""

    def __init__(self, stream: HttpStream, claim: Claim) -> None:
        self.status = stream.status
        self.head = stream.head
        self._stream = stream
        self._claim: Claim | None = claim

    async def receive(self) -> bytes | None:
        return await self._stream.receive()

    def close(self) -> None:
        self._stream.close()
        if self._claim is not None:
            self._claim.release(answered=False)
            self._claim = None


def _loss(error: UpstreamUnavailable) -> Loss:
    return Loss.UNSENT if error.is_unsent else Loss.BROKEN_OFF


def _may_repeat(call: InferCall, running: RunningRequest | None, loss: Loss | None, outcome: Outcome) -> bool:
    """Whether sending it again may be of use and can do no harm: it has not been computed, or equal requests have equal answers."""
    if loss is None:
        return outcome is Outcome.MODEL_NOT_FOUND and not call.model_version  # of a version that is not there: the model is
    if loss is Loss.BROKEN_OFF:
        return running is not None and running.is_repeatable and not call.sequence_id
    return loss is Loss.UNSENT
