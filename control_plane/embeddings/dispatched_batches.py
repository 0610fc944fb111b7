"""Sends the batches of an embeddings call over the dispatcher: each is a request of its own there, which is routed, hedged, sent again
and, if processes die under it, put in quarantine as any other.

`embeddings/embeddings` makes one for each call. A sharded model's batches are carried out part by part
(`inference/sharded_models`). Charged is the call, for the time that its batches were at servers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from control_plane.core.infer_call import InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.core.tensor import RawTensor
from control_plane.embeddings.domain.embedding_tensors import json_bytes_of
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.inference import InferenceService
from control_plane.inference.requests import InferRequest
from control_plane.inference.sharded_models import render_failure
from control_plane.protocols.grpc import GrpcAnswer
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.kserve.ensemble_json import GivenTensors, read_given, render_answer
from control_plane.sharding.domain.plan import Step
from control_plane.triton.ports import Slot, Upstream

PartOf = Callable[[bytes, Principal], InferRequest[GrpcAnswer]]
"""Makes the request to a part of a message's frame, for a caller."""


class DispatchedBatches:
    """Sender of one call's batches; the call, which holds the slot for all of them, is charged when the block ends."""

    def __init__(
        self,
        inference: InferenceService,
        running: AuthorizedRequest,
        part_of: PartOf,
        costing: Callable[[Sequence[bytes]], InferCall],
        *,
        at_once: int,
    ) -> None:
        """`costing` returns a call that costs as much as a batch of inputs; `at_once` is how many batches are sent at the same
        time, at most."""
        self._inference = inference
        self._running = running
        self._part_of = part_of
        self._costing = costing
        self._at_once = at_once
        self._sent = 0
        self._rows = self._at_servers_s = 0.0
        """Rows that were computed, and the seconds that batches were at servers, added up."""

    async def send(self, request: HttpRequest, inputs: Sequence[bytes], *, timeout_s: float, slot: Slot | None) -> HttpAnswer:
        """Answer the request of a batch. Raises as `inference/dispatch/dispatch.Dispatch.send`."""
        call = self._costing(inputs)
        batch = self._inference.running.begin_batch(self._running, call)
        self._sent += 1
        try:
            whole = _Batch(request, inputs, slot, self._running.principal, self._part_of)
            return await self._inference.dispatch.send(whole, call, timeout_s=timeout_s, running=batch)
        finally:
            if batch.sent_s is not None:
                self._at_servers_s += self._inference.running.now_s() - batch.sent_s
                self._rows += batch.computed_rows
                self._running.server = batch.server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        # Also after an error: batches that were sent are charged, those that were not are not.
        if self._rows:
            at_once, running = min(self._at_once, self._sent), self._running
            running.sent_s = max(running.started_s, self._inference.running.now_s() - self._at_servers_s / at_once)
            running.mark_sent_in_parts(min(1.0, self._rows / running.computed_rows), at_once)


class _Batch:
    """Request of one batch, as `inference/requests.WholeRequest`: its model may be sharded."""

    def __init__(self, http: HttpRequest, inputs: Sequence[bytes], slot: Slot | None, principal: Principal, part_of: PartOf) -> None:
        self.slot = slot
        self._http = http
        self._inputs = inputs
        self._principal = principal
        self._part_of = part_of

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[HttpAnswer]:
        return server.http.send(self._http, timeout_s=timeout_s, slot=self.slot)

    def outcome(self, answer: HttpAnswer) -> Outcome:
        return Outcome.ANSWERED if answer.status == 200 else Outcome.UPSTREAM_ERROR

    def content(self, call: InferCall) -> Sequence[bytes]:
        return self._inputs

    def given(self, call: InferCall) -> GivenTensors:
        return read_given(self._http.body, json_bytes_of(self._http))

    def part(self, step: Step, frame: bytes) -> InferRequest[GrpcAnswer]:
        return self._part_of(frame, self._principal)

    def answer_of_parts(self, call: InferCall, version: str, given: GivenTensors, outputs: Sequence[tuple[str, RawTensor]]) -> HttpAnswer:
        return render_answer(call.model_name, version, "", given, outputs)

    def failed_by(self, code: int, text: str) -> HttpAnswer:
        return render_failure(code, text)
