"""Sends the batches of an embeddings call to a sharded model, which no server has: each is carried out part by part.

`embeddings/embeddings` puts it in the place of a server. The parts are asked by `inference/sharded_models`, over the dispatcher,
and each batch is to that a request of its own; charged is the call, for the time that its batches' parts were at servers.
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
from control_plane.inference.sharded_models import call_of_inputs, render_failure
from control_plane.protocols.grpc import GrpcAnswer
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.kserve.ensemble_json import GivenTensors, read_given, render_answer
from control_plane.sharding.domain.plan import Step
from control_plane.triton.ports import Slot, Upstream

PartOf = Callable[[bytes, Principal], InferRequest[GrpcAnswer]]
"""Makes the request to a part of a message's frame, for a caller."""


class BatchesInParts:
    """Client of a sharded model for one call, which is charged when the block ends."""

    def __init__(self, inference: InferenceService, running: AuthorizedRequest, part_of: PartOf, *, at_once: int) -> None:
        """`at_once` is how many batches are sent at the same time, at most."""
        self._inference = inference
        self._running = running
        self._part_of = part_of
        self._at_once = at_once
        self._sent = 0
        self._rows = self._at_servers_s = 0.0
        """Rows that were computed, and the seconds that batches were at servers, added up."""

    @property
    def http(self) -> Self:
        return self

    async def send(self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None) -> HttpAnswer:
        """Answer the request of a batch. Raises as `inference/sharded_models.ShardedModels.send`."""
        given = read_given(request.body, json_bytes_of(request))
        call = call_of_inputs(self._running.call.model_name, self._running.call.model_version, given.inputs)
        batch = self._inference.running.begin_part(self._running, call)
        self._sent += 1
        try:
            whole = _WholeBatch(request, given, self._running.principal, self._part_of)
            return await self._inference.dispatch.send(whole, call, timeout_s=timeout_s, running=batch)
        finally:
            if batch.sent_s is not None:
                self._at_servers_s += self._inference.running.now_s() - batch.sent_s
                self._rows += batch.computed_rows
            batch.end(Outcome.FAILED)  # counted and recorded is the call, whatever becomes of a batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._rows:
            at_once, running = min(self._at_once, self._sent), self._running
            running.sent_s = max(running.started_s, self._inference.running.now_s() - self._at_servers_s / at_once)
            running.mark_sent_in_parts(min(1.0, self._rows / running.computed_rows), at_once)


class _WholeBatch:
    """Request of one batch to a sharded model, as `inference/requests.WholeRequest`."""

    def __init__(self, http: HttpRequest, given: GivenTensors, principal: Principal, part_of: PartOf) -> None:
        self._http = http
        self._given = given
        self._principal = principal
        self._part_of = part_of

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[HttpAnswer]:
        """Send it to a server that has the model as a whole: it may just have ceased to be sharded."""
        return server.http.send(self._http, timeout_s=timeout_s)

    def outcome(self, answer: HttpAnswer) -> Outcome:
        return Outcome.ANSWERED if answer.status == 200 else Outcome.UPSTREAM_ERROR

    def content(self, call: InferCall) -> Sequence[bytes]:
        return (bytes(self._http.body),)

    def given(self, call: InferCall) -> GivenTensors:
        return self._given

    def part(self, step: Step, frame: bytes) -> InferRequest[GrpcAnswer]:
        return self._part_of(frame, self._principal)

    def answer_of_parts(self, call: InferCall, version: str, given: GivenTensors, outputs: Sequence[tuple[str, RawTensor]]) -> HttpAnswer:
        return render_answer(call.model_name, version, "", given, outputs)

    def failed_by(self, code: int, text: str) -> HttpAnswer:
        return render_failure(code, text)
