"""One request of a ModelStreamInfer call to an ordinary model, sent to Triton as a ModelInfer call."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass

from control_plane.core.infer_call import InferCall, Outcome
from control_plane.frontends.kserve.grpc_infer import content_of, outcome_of_code
from control_plane.protocols.grpc import PREFIX_BYTES, GrpcAnswer
from control_plane.triton.ports import GrpcCall, Slot, Upstream


@dataclass(frozen=True, slots=True)
class StreamedInfer:
    """A request to an ordinary model, sent as a ModelInfer call: `inference/requests.ServerRequest`."""

    call: GrpcCall
    slot: Slot | None

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[GrpcAnswer]:
        return server.grpc.unary(self.call, timeout_s=timeout_s, slot=self.slot)

    def outcome(self, answer: GrpcAnswer) -> Outcome:
        return outcome_of_code(answer.code)

    def content(self, call: InferCall) -> tuple[bytes, ...]:
        return content_of(memoryview(self.call.frame)[PREFIX_BYTES:])
