"""One inference request over gRPC, as a call (ModelInfer) or a message of a stream, in the form that `inference/inference` uses.

Made by `frontends/kserve/grpc` and `frontends/kserve/grpc_stream`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice

from control_plane.auth.access import Access
from control_plane.cache.domain.cached_response import (
    decode_grpc,
    encode_grpc,
    forbids_cached_answer,
    mark_grpc,
)
from control_plane.cache.keys import CacheScope, canonical_message, identity_of
from control_plane.core.algorithms.steps import Steps, join_steps
from control_plane.core.errors import ControlPlaneError, InvalidRequest, NotSupported, Overloaded
from control_plane.core.infer_call import CacheStatus, Frontend, InferCall, Outcome
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.core.tensor import RawTensor
from control_plane.frontends.kserve.copies import GrpcCopy
from control_plane.frontends.kserve.grpc_verbatim import GrpcVerbatimCache
from control_plane.inference.routes.targets import MODEL_HEADER, WHOLE_BYTES, ends_of
from control_plane.protocols.grpc import (
    PREFIX_BYTES,
    GrpcAnswer,
    GrpcHead,
    GrpcStatus,
    MessageFrame,
    append_in_place,
    frame_message,
    frame_prefix,
    is_compressed,
    message_answer,
    message_in,
    message_pieces,
    status_answer,
    with_trailer,
)
from control_plane.protocols.header_forwarding import HeaderForwarding, unlocking
from control_plane.protocols.kserve.ensemble_json import GivenTensors
from control_plane.protocols.kserve.ensemble_proto import read_given, render_answer
from control_plane.protocols.kserve.messages import service_pb2
from control_plane.protocols.kserve.model_reference import model_in, with_model
from control_plane.protocols.kserve.requests.body_limits import BodyLimits, InflateBound
from control_plane.protocols.kserve.requests.infer_proto import infer_request_steps, small_infer_request
from control_plane.protocols.kserve.requests.reserved_parameters import refuse_priority
from control_plane.protocols.kserve.sequence_ids import own_call, own_field
from control_plane.protocols.kserve.tensors.same_inputs import MAX_BYTES, inputs_of_message
from control_plane.protocols.protobuf_fields import fields
from control_plane.sharding.domain.plan import Step
from control_plane.triton.ports import GrpcCall, RegionUpstream, Slot, Upstream

MAX_CACHEABLE_REQUEST_BYTES = 2**20
"""Largest request whose answer is cached: hashing so much for a key takes most of a millisecond."""
_KIND = b"grpc"
_TRACEPARENT = b"traceparent"
_ID = 3 << 3 | 2
"""Tag of `id` in a ModelInferRequest."""
_MAX_ID_BYTES = 1024
_LOOKED_THROUGH_BYTES = 64 * 1024
_MAX_FIELDS = 4096
"""Fields of a refused message that are searched for its id; that takes some milliseconds."""
_HELD = InflateBound(0, "the message has not been inflated")
"""Guard: a compressed message must be inflated by `frontends/common/inflating`, which takes memory from the
budget."""

_OUTCOMES: dict[int, Outcome] = {
    GrpcStatus.OK: Outcome.ANSWERED,
    GrpcStatus.DEADLINE_EXCEEDED: Outcome.DEADLINE_EXCEEDED,
    GrpcStatus.NOT_FOUND: Outcome.MODEL_NOT_FOUND,
    GrpcStatus.UNAVAILABLE: Outcome.UNAVAILABLE,
}
_UPSTREAM_ERROR = Outcome.UPSTREAM_ERROR  # once: in Python 3.11 to look up a member of an enum takes as long as a call


def outcome_of_code(code: int) -> Outcome:
    """The outcome that a gRPC status amounts to, whether Triton sent it or the adapter made it up."""
    return _OUTCOMES.get(code, _UPSTREAM_ERROR)


def content_of(message: bytes | memoryview) -> tuple[bytes, ...]:
    """What a ModelInferRequest's answer is computed from: its inputs, equal to those of the same request over HTTP, or the
    message where they cannot be told."""
    try:
        found = None if len(message) > MAX_BYTES else inputs_of_message(service_pb2.ModelInferRequest.FromString(bytes(message)))
    except Exception:  # protobuf's DecodeError differs between its implementations; it may be compressed
        found = None
    return found or (exact_content_of(message),)


def exact_content_of(message: bytes | memoryview) -> bytes:
    """A ModelInferRequest without its id, unless it is compressed or has too many fields to look for that."""
    try:
        return canonical_message(message) or bytes(message)
    except InvalidRequest:
        return bytes(message)


class InferMessage:
    """A ModelInferRequest in its frame, parsed only to be checked."""

    __slots__ = ("_access", "_failure", "_limits", "frame", "head", "inflated", "principal")

    def __init__(self, frame: MessageFrame, head: GrpcHead, limits: BodyLimits, principal: Principal, access: Access) -> None:
        self.frame = frame
        self.head = head
        self.principal = principal
        self._limits = limits
        self._access = access
        self._failure: ControlPlaneError | None = None
        self.inflated: memoryview | None = None
        """The inflated message of a compressed frame, within `frontends/common/inflating.inflated`."""

    def body_bytes(self) -> int:
        return len(self.frame)

    @property
    def is_compressed(self) -> bool:
        return is_compressed(self.frame)

    def pieces(self) -> Iterator[bytes]:
        """Inflate the message piece by piece. Raises as `message_pieces` does."""
        bound = self._limits.inflated(len(self.frame))
        return message_pieces(self.frame, self.head.encoding, bound)

    def fail(self, error: ControlPlaneError) -> None:
        """Make `read` raise `error`: the message could not be inflated, and the refusal is to be recorded
        like any other."""
        self._failure = error

    def read_at_once(self) -> InferCall | None:
        if self._failure is not None:
            return None
        call = small_infer_request(self._message(), service_pb2.ModelInferRequest.FromString)
        return None if call is not None and call.concerns_others and self.principal is not ANONYMOUS else call

    def read(self) -> Steps[InferCall]:
        if self._failure is not None:
            raise self._failure
        steps = infer_request_steps(self._message(), service_pb2.ModelInferRequest.FromString, self._limits)
        return steps if self.principal is ANONYMOUS else self._tenants_steps(steps)

    def _tenants_steps(self, steps: Steps[InferCall]) -> Steps[InferCall]:
        """Read a tenant's message, and replace the id of its sequence, if it is in one. Raises InvalidRequest: it has a priority, too."""
        call = yield from steps
        refuse_priority(call)
        if not call.sequence_id:
            return call
        own = own_call(call, self._access.sequence_key(self.principal))
        field = own_field(own)
        frame = append_in_place(self.frame, field)  # a large message is in memory once, as it is counted
        if frame is None:
            message = self._message()
            frame = memoryview((yield from join_steps(frame_prefix(len(message) + len(field)), message, field)))
        self._replace(frame)
        return own

    def readdress(self, model_name: str, model_version: str) -> None:
        """Readdress the message to this model: the name in it is a route's."""
        self._replace(frame_message(with_model(self._message(), model_name, model_version)))

    def _replace(self, frame: MessageFrame) -> None:
        self.frame, self.inflated = frame, None  # what has been inflated is the message as it came

    def field(self, name: str) -> str | None:
        return self.head.field(name.encode())

    def unit(self, call: InferCall) -> tuple[bytes, ...]:
        message = self._message()
        return (exact_content_of(message),) if len(message) <= WHOLE_BYTES else ends_of(message)

    def name_seen(self) -> str:
        """The model in a small message; searching a large or compressed one costs more than a refusal is
        worth."""
        if self.is_compressed or len(self.frame) > _LOOKED_THROUGH_BYTES:
            return ""
        try:
            return model_in(memoryview(self.frame)[PREFIX_BYTES:])[0]
        except InvalidRequest:  # the message may have been refused because of its name
            return ""

    def header_id(self) -> str:
        return self.head.request_id

    def id(self) -> str:
        """The request's id, for the error message of a refused request, so that its sender knows which one it
        was."""
        try:
            found = islice(fields(memoryview(self._message())), _MAX_FIELDS)
            values = [payload for tag, _, payload in found if tag == _ID]
            return bytes(values[-1][:_MAX_ID_BYTES]).decode(errors="replace") if values else ""
        except ControlPlaneError:  # the message may have been refused because it is not valid protobuf
            return ""

    def _message(self) -> bytes | memoryview:
        if self.inflated is not None:
            return self.inflated
        return message_in(self.frame, self.head.encoding, _HELD)


@dataclass(frozen=True, slots=True)
class GrpcInferContext:
    """The collaborators and limits that all inference requests over gRPC share."""

    verbatim: GrpcVerbatimCache | None
    """None for the requests to parts of sharded models, which are no caller's."""
    limits: BodyLimits
    forwarding: HeaderForwarding
    access: Access


class GrpcInferRequest(InferMessage):
    """One ModelInfer call, as `inference/requests.InferRequest`."""

    __slots__ = ("_came", "_chosen", "_context", "_request_id", "slot")
    frontend = Frontend.GRPC

    def __init__(self, call: GrpcCall, context: GrpcInferContext) -> None:
        super().__init__(call.frame, call.head, context.limits, call.principal, context.access)
        self._context = context
        self._came = call
        """The call as it came, even after `readdress` has readdressed the request."""
        self._request_id = self._chosen = ""
        self.slot: Slot | None = None

    @property
    def timeout_s(self) -> float | None:
        timeout_s = self.head.timeout_s
        return timeout_s if timeout_s is None else max(0.0, timeout_s - self._came.waited_s)

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[GrpcAnswer]:
        call = GrpcCall(self.head, self.frame, ANONYMOUS, b"", self._came.most_answer_bytes)
        return server.grpc.unary(call, timeout_s=timeout_s, slot=self.slot)

    def send_on(self, gateway: RegionUpstream, *, timeout_s: float) -> Awaitable[GrpcAnswer]:
        return gateway.grpc.unary(GrpcCall(gateway.head_for(self._came.head), self._came.frame), timeout_s=timeout_s)

    def with_field(self, answer: GrpcAnswer, name: str, value: str) -> GrpcAnswer:
        return with_trailer(answer, name, value)

    def with_traceparent(self, value: bytes) -> GrpcInferRequest:
        own = copy(self)
        rest = (each for each in self.head.metadata if each[0] != _TRACEPARENT)
        own.head = replace(self.head, metadata=(*rest, (_TRACEPARENT, value)))
        return own

    def outcome(self, answer: GrpcAnswer) -> Outcome:
        return outcome_of_code(answer.code)

    def copy_for(self, model_name: str, model_version: str) -> GrpcCopy:
        return GrpcCopy(GrpcCall(self.head, frame_message(bytes(with_model(self._message(), model_name, model_version)))))

    def key(self, scope: CacheScope, call: InferCall) -> bytes | None:
        if len(self.frame) > MAX_CACHEABLE_REQUEST_BYTES or forbids_cached_answer(self.head.cache_control):
            return None
        self._request_id = call.request_id
        message = canonical_message(self._message())
        # It has too many fields to look for the id among them.
        if message is None:
            return None
        forwarded, keys = self._context.forwarding.matched(self.head.metadata), unlocking(self.head.metadata)
        return scope.key(_KIND, call.model_version.encode(), identity_of(message, *filter(None, (forwarded, keys))))

    def content(self, call: InferCall) -> tuple[bytes, ...]:
        # A computation may outlast its first caller, and the inflated message is held for that one only.
        is_held = self.inflated is not None or not self.is_compressed
        return content_of(self._message() if is_held else memoryview(self.frame)[PREFIX_BYTES:])

    def encode_answer(self, answer: GrpcAnswer) -> bytes | None:
        return encode_grpc(answer)

    def decode_answer(self, encoded: bytes, status: CacheStatus) -> GrpcAnswer:
        return decode_grpc(encoded, status, request_id=self._request_id)

    def keep_verbatim(self, call: InferCall, key: bytes, answer: GrpcAnswer) -> None:
        if self._context.verbatim is not None:
            self._context.verbatim.keep(self._came, call, key, self.with_model(answer) if self._chosen else answer)

    def keep_refusal(self, call: InferCall, error: Overloaded) -> None:
        if self._context.verbatim is not None:
            self._context.verbatim.keep_refusal(self._came, call, error)

    def given(self, call: InferCall) -> GivenTensors:
        if self._context.verbatim is None:
            raise NotSupported(f"model '{call.model_name}' is sharded itself: the model of which it is a part has to name its steps")
        return read_given(self._message())

    def part(self, step: Step, frame: bytes) -> GrpcInferRequest:
        return part_request(frame, self.principal, self._context, self.field("traceparent"))

    def answer_of_parts(self, call: InferCall, version: str, given: GivenTensors, outputs: Sequence[tuple[str, RawTensor]]) -> GrpcAnswer:
        return message_answer(b"".join(render_answer(call.model_name, version, call.request_id, outputs)))

    def failed_by(self, code: int, text: str) -> GrpcAnswer:
        return status_answer(code, text)

    def choose(self, model_name: str) -> None:
        self._chosen = model_name

    def with_model(self, answer: GrpcAnswer) -> GrpcAnswer:
        return with_trailer(answer, MODEL_HEADER, self._chosen)

    def mark(self, answer: GrpcAnswer, status: CacheStatus) -> GrpcAnswer:
        return mark_grpc(answer, status)


_PART_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_PART_METADATA = (b"content-type", b"application/grpc")


def parts_of(limits: BodyLimits, forwarding: HeaderForwarding, access: Access) -> Callable[[bytes, Principal], GrpcInferRequest]:
    """Return what makes the requests to parts whose whole has come by neither protocol of Triton's."""
    context = GrpcInferContext(None, limits, forwarding, access)
    return lambda frame, principal: part_request(frame, principal, context, None)


def part_request(frame: bytes, principal: Principal, context: GrpcInferContext, traceparent: str | None) -> GrpcInferRequest:
    """A request to a part of a sharded model: over gRPC, whatever the caller's protocol."""
    metadata = (_PART_METADATA,) if traceparent is None else (_PART_METADATA, (_TRACEPARENT, traceparent.encode("latin-1")))
    call = GrpcCall(GrpcHead(_PART_METHOD, metadata), frame, principal, most_answer_bytes=context.limits.max_body_bytes)
    return GrpcInferRequest(call, replace(context, verbatim=None))
