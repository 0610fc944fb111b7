"""Sends each request to the server that it should go to, in a fleet; asked by `services/inference` once a request may go to Triton."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from control_plane.codec.http_message import HttpAnswer
from control_plane.domain.errors import UpstreamUnavailable
from control_plane.domain.inference import InferCall, Outcome
from control_plane.ports import HttpStream, Upstream
from control_plane.services.fleet_state import Claim
from control_plane.services.inference import GenerateRequest, InferRequest
from control_plane.services.residency import Residency

AnswerT = TypeVar("AnswerT")

_ATTEMPTS = 2
"""Where a server says that it lacks what was there, which others may have unloaded, the request goes once more."""


class FleetDispatch:
    """`services.inference.Dispatch`."""

    def __init__(self, residency: Residency, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the loop's time."""
        self._residency = residency
        self._now_s = now_s

    async def send(self, request: InferRequest[AnswerT], call: InferCall, *, timeout_s: float) -> AnswerT:
        deadline_s = self._now_s() + timeout_s
        for attempt in range(_ATTEMPTS):
            claim = await self._residency.claim(call, deadline_s=deadline_s)
            outcome = Outcome.FAILED
            try:
                answer = await request.send(claim.upstream, timeout_s=deadline_s - self._now_s())
                outcome = request.outcome(answer)
            except UpstreamUnavailable:
                outcome = Outcome.UNAVAILABLE
                raise
            finally:
                self._end(claim, call, outcome)
            if outcome is not Outcome.MODEL_NOT_FOUND or call.model_version or attempt == _ATTEMPTS - 1:
                return answer  # of a version that is not there, too: the model is
            self._residency.is_missing(claim)
        raise AssertionError("the last attempt returns")

    def _end(self, claim: Claim, call: InferCall, outcome: Outcome) -> None:
        claim.release(answered=outcome is Outcome.ANSWERED)
        if outcome is Outcome.UNAVAILABLE:
            self._residency.failed(claim)
        elif outcome is not Outcome.FAILED:
            self._residency.answered(call, claim)

    async def stream(self, request: GenerateRequest, call: InferCall, *, timeout_s: float) -> HttpAnswer | HttpStream:
        deadline_s = self._now_s() + timeout_s
        claim = await self._residency.claim(call, deadline_s=deadline_s)
        held: HttpStream | None = None
        try:
            answer = await request.stream(claim.upstream, timeout_s=deadline_s - self._now_s())
            if not isinstance(answer, HttpAnswer):
                held = _ClaimedStream(answer, claim)
                return held
            return answer
        finally:
            if held is None:
                claim.release(answered=False)

    @asynccontextmanager
    async def server_for(self, call: InferCall, *, timeout_s: float) -> AsyncIterator[Upstream]:
        """A server with the model, for as long as the block lasts. Raises Overloaded."""
        claim = await self._residency.claim(call, deadline_s=self._now_s() + timeout_s)
        try:
            yield claim.upstream
            self._residency.answered(call, claim)
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
    """`ports.HttpStream` that keeps its place until it is closed."""

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
