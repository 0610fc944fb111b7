"""Port for the choice of a server and the sending of each request: `inference/dispatch/single_server` implements it for one
Triton, `fleet/routing/dispatch` for a fleet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol, TypeVar

from control_plane.core.infer_call import InferCall
from control_plane.inference.dispatch.catalogue import Catalogue
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.requests import GenerateRequest, ServerRequest
from control_plane.inference.retries.queries_of_death import QueriesOfDeath
from control_plane.inference.retries.retry_budget import RetryBudget
from control_plane.protocols.http1 import HttpAnswer
from control_plane.triton.open_streams import OpenStreams
from control_plane.triton.ports import HttpStream, Upstream

AnswerT = TypeVar("AnswerT")


class Dispatch(Protocol):
    """Router: chooses the server of each request.

    `inference/dispatch/single_server`, or in a fleet `fleet/routing/dispatch`.
    """

    retries: RetryBudget
    """Budget of what is sent to servers beyond what clients ask for."""
    deaths: QueriesOfDeath
    """Quarantine for requests under which processes die."""

    @property
    def streams(self) -> OpenStreams:
        """Register of the streamed responses under way; who sends by himself adds those that he opens."""

    @property
    def catalogue(self) -> Catalogue | None:
        """The merged model catalogue of a fleet; None where there is one server, which answers for itself."""

    def send(
        self, request: ServerRequest[AnswerT], call: InferCall, *, timeout_s: float, running: AuthorizedRequest | None = None
    ) -> Awaitable[AnswerT]:
        """Choose a server, wait until the model is loaded there, and send; `running` says what it costs and
        who asks.

        Raises ModelNotFound, Overloaded, and what the request's own `send` raises.
        """

    def stream(
        self, request: GenerateRequest, call: InferCall, *, timeout_s: float, running: AuthorizedRequest | None = None
    ) -> Awaitable[HttpAnswer | HttpStream]:
        """Choose a server as `send` does, for a streamed answer, which holds its in-flight slot there until it is
        closed."""

    def server_for(
        self, call: InferCall, *, timeout_s: float, running: AuthorizedRequest | None = None
    ) -> AbstractAsyncContextManager[Upstream]:
        """Reserve a server for a stream, whose caller sends by itself, for as long as the block lasts.

        Raises as `send` does.
        """

    def met_dead_stub(self, server: str, model: str, *, sent_s: float) -> None:
        """Note Triton's answer that the stub is dead which was to compute a request, sent there at the loop's time `sent_s`; who sends
        by himself tells it of each."""

    def idle_replica(self, call: InferCall) -> AbstractContextManager[Upstream] | None:
        """Reserve a replica of the model that has nothing to do, for as long as the block lasts; None if there is none. What is
        sent there says nothing of service times, and is never sent again."""

    async def reading(self, model: str, *, timeout_s: float) -> Upstream:
        """A server that can describe the model; it is loaded for that if it must be.

        Raises as `send` does.
        """

    def awaited(self) -> Iterator[tuple[str, str, float]]:
        """Yield the server, the model and the time it was sent of each replica's oldest request, if that has waited for long."""

    def ready_in_s(self, model: str) -> float:
        """Return the seconds until the model's load should be over; 0 where it is loaded, or is not being loaded."""

    async def ready(self) -> set[str]:
        """Names of the models that are loaded on any server now.

        Raises UpstreamUnavailable, UpstreamFailed, DeadlineExceeded.
        """
