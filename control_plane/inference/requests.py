"""Protocols of a request as the inference path uses it, so that the path knows no wire format.

The frontends implement them (`frontends/kserve/http_infer`, `grpc_infer`; `embeddings/embeddings`); `inference/inference` and
the dispatchers call them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol, Self, TypeVar

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import Overloaded
from control_plane.core.infer_call import Frontend, InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.core.tensor import RawTensor
from control_plane.inference.caching.cached_inference import CacheableRequest
from control_plane.inference.in_flight.unparsed_request import UnparsedRequest
from control_plane.inference.retries.queries_of_death import Hashable
from control_plane.inference.routes.shadowing import CopyableRequest
from control_plane.inference.routes.targets import Assignee
from control_plane.protocols.grpc import GrpcAnswer
from control_plane.protocols.http1 import HttpAnswer
from control_plane.protocols.kserve.ensemble_json import GivenTensors
from control_plane.sharding.domain.plan import Step
from control_plane.triton.ports import HttpStream, ModelStream, RegionUpstream, Slot, Upstream

AnswerT = TypeVar("AnswerT")


class FrontendRequest(UnparsedRequest, Assignee, Protocol):
    """An inference request as its frontend holds it."""

    frontend: Frontend
    principal: Principal
    slot: Slot | None
    """The request's slot at its model, once it has one."""

    @property
    def timeout_s(self) -> float | None:
        """The caller's timeout in seconds; None where the caller gives none. Raises InvalidRequest."""

    def read_at_once(self) -> InferCall | None:
        """Validate the request if it is small; None: `read` has to. Raises as `read` does."""

    def read(self) -> Steps[InferCall]:
        """Validate the request, in steps if it is large.

        Raises InvalidRequest, UnparsableRequest, PayloadTooLarge, NotSupported.
        """

    def readdress(self, model_name: str, model_version: str) -> None:
        """Readdress the request to this model: the name in it is a route's."""

    def choose(self, model_name: str) -> None:
        """Note the model that a route with targets has chosen for it, which its answer is to name."""

    def with_traceparent(self, value: bytes) -> Self:
        """Return a copy that tells the server this `traceparent` (W3C Trace Context) in place of the caller's."""


class ServerRequest(Hashable, Protocol[AnswerT]):
    """A request that can be sent to a server."""

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[AnswerT]:
        """Send the request and return Triton's answer, good or bad.

        Raises UpstreamUnavailable, DeadlineExceeded.
        """

    def outcome(self, answer: AnswerT) -> Outcome:
        """The outcome that Triton's answer amounts to."""


class SendableOn(Hashable, Protocol[AnswerT]):
    """A request that another region may answer. Its `content` is empty where only its parts are sent."""

    def field(self, name: str) -> str | None:
        """See `inference/routes/targets.Assignee`."""

    def body_bytes(self) -> int:
        """See `inference/in_flight/unparsed_request.UnparsedRequest`."""

    def send_on(self, gateway: RegionUpstream, *, timeout_s: float) -> Awaitable[AnswerT]:
        """Send the request, as it came, to another region's gateway, which gets `timeout_s` for it.

        Raises UpstreamUnavailable, DeadlineExceeded.
        """

    def with_field(self, answer: AnswerT, name: str, value: str) -> AnswerT:
        """Add a header field, or a trailer, to an answer."""


class InferRequest(
    FrontendRequest, CacheableRequest[AnswerT], ServerRequest[AnswerT], CopyableRequest, SendableOn[AnswerT], Protocol[AnswerT]
):
    """A unary inference request, whose answer may be cached."""

    def keep_refusal(self, call: InferCall, error: Overloaded) -> None:
        """Have equal requests refused unparsed by this error, for a moment and only while it holds for them, too."""

    def with_model(self, answer: AnswerT) -> AnswerT:
        """Add the name of the model that `choose` noted to an answer."""


class WholeRequest(ServerRequest[AnswerT], Protocol[AnswerT]):
    """A unary request to a sharded model, which no server gets: it is answered from its parts' tensors, in its protocol."""

    def given(self, call: InferCall) -> GivenTensors:
        """Its inputs as raw tensors, and what it asks for. Raises InvalidRequest, NotSupported, PayloadTooLarge."""

    def part(self, step: Step, frame: bytes) -> InferRequest[GrpcAnswer]:
        """The request to a part, of which `frame` is the message."""

    def answer_of_parts(self, call: InferCall, version: str, given: GivenTensors, outputs: Sequence[tuple[str, RawTensor]]) -> AnswerT:
        """The answer with these outputs. Raises InvalidRequest, PayloadTooLarge: one cannot be written as JSON."""

    def failed_by(self, code: int, text: str) -> AnswerT:
        """The answer where a part's had this gRPC status and text."""


class GenerateRequest(FrontendRequest, Hashable, Protocol):
    """A request whose answer may be streamed piece by piece (Triton's generate extension, OpenAI's completions; HTTP only)."""

    @property
    def sends_whole(self) -> bool:
        """Whether its caller gets the pieces of a stream as one, so that an error among them is the answer."""

    def stream(self, server: Upstream, *, timeout_s: float) -> Awaitable[HttpAnswer | ModelStream]:
        """Send the request; the answer is a whole one or a stream.

        Raises UpstreamUnavailable, DeadlineExceeded.
        """

    def stream_on(self, gateway: RegionUpstream, *, timeout_s: float) -> Awaitable[HttpAnswer | ModelStream]:
        """Send the request, as it came, to another region's gateway, as `stream` does; only a stream of the status 200 is one."""

    def outcome(self, answer: HttpAnswer | HttpStream) -> Outcome:
        """The outcome that Triton's answer amounts to, provided that a stream reaches its end."""

    def head_with_model(self, head: bytes) -> bytes:
        """The head of an answer with the name of the model that `choose` noted."""
