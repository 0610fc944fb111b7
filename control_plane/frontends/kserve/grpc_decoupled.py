"""Streams to Triton of one ModelStreamInfer call: its requests to decoupled models, and their responses.

A decoupled model sends any number of responses to a request and need not mark the last one, so what a request has come to cannot be
observed here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from math import inf

from control_plane.core.errors import ControlPlaneError, QueryOfDeath, UpstreamUnavailable
from control_plane.core.infer_call import InferCall
from control_plane.frontends.grpc.handler import failure
from control_plane.frontends.grpc.message_stream import MessageStream
from control_plane.frontends.kserve.grpc_infer import content_of
from control_plane.frontends.kserve.grpc_stream_messages import StreamEnded, dead_model_in, raise_model_error
from control_plane.frontends.kserve.grpc_stream_request import StreamRequest
from control_plane.inference.inference import InferenceService
from control_plane.inference.retries.queries_of_death import STREAM_SUSPECT_S, QueriesOfDeath, Suspect
from control_plane.protocols.grpc import PREFIX_BYTES, GrpcHead, MessageFrame, answer_of
from control_plane.triton.ports import GrpcStream, Upstream
from control_plane.triton.servers import NOTICED_S, Servers

_MOST_SUSPECTS, _SUSPECT_BYTES = 16, 64 * 1024
"""So many of the last requests to a model, and of these the small ones, are suspect if its process dies: they are held for that,
for as long as they are."""


@dataclass(slots=True)
class _Message:
    """Request as the quarantine knows it (`inference/retries/queries_of_death.Hashable`)."""

    frame: MessageFrame

    def content(self, call: InferCall) -> tuple[bytes, ...]:
        return content_of(memoryview(self.frame)[PREFIX_BYTES:])


@dataclass(slots=True)
class _Sent:
    """Request that may be under way."""

    frame: MessageFrame
    call: InferCall
    server: str
    suspect: Suspect | None
    at_s: float


@dataclass(slots=True)
class _Called:
    """A decoupled model that was called on a stream; implements `triton/open_streams.OpenStream`."""

    stream: GrpcStream
    request_timeout_s: float
    deaths: QueriesOfDeath
    sent_s: float = -inf
    latest: deque[_Sent] = field(default_factory=lambda: deque(maxlen=_MOST_SUSPECTS))
    lost: ControlPlaneError | None = None
    forgets: asyncio.TimerHandle | None = None

    @property
    def heard_s(self) -> float:
        return self.stream.heard_s

    def is_idle(self) -> bool:
        """Whether its requests are taken to be done: nothing has gone or come for as long as one may take."""
        return max(self.sent_s, self.heard_s) < asyncio.get_running_loop().time() - self.request_timeout_s

    def sends(self, asked: StreamRequest) -> None:
        """Note that a request is sent."""
        loop = asyncio.get_running_loop()
        self.sent_s = loop.time()
        if asked.size_bytes <= _SUSPECT_BYTES:
            self.latest.append(_Sent(asked.message.frame, asked.call, asked.running.server, asked.suspect, self.sent_s))
            self.forgets = self.forgets or loop.call_later(STREAM_SUSPECT_S, self._forget)

    def _forget(self) -> None:
        """Forget the requests that are suspect no more: a call may stay open for days, and no budget counts what it has sent."""
        loop, self.forgets = asyncio.get_running_loop(), None
        while self.latest and self.latest[0].at_s <= loop.time() - STREAM_SUSPECT_S:
            self.latest.popleft()
        if self.latest:
            self.forgets = loop.call_at(self.latest[0].at_s + STREAM_SUSPECT_S, self._forget)

    def fail(self, error: UpstreamUnavailable) -> None:
        if self.is_idle():
            return
        self.lost = self.guilty(is_stub=True) or error
        self.stream.cancel()

    def guilty(self, *, is_stub: bool) -> QueryOfDeath | None:
        """Note that a process has died, the model's or all of Triton, and return the verdict on a request that is guilty."""
        found: QueryOfDeath | None = None
        for each in self.latest:
            try:
                case = self.deaths.case_of(_Message(each.frame), each.call, each.server, each.suspect, begun_s=each.at_s)
                case.died(is_stub=is_stub)
            except QueryOfDeath as exc:
                found = exc
        return found


class DecoupledStreams:
    """Streams of one call to the servers of the decoupled models that it calls: one to each server."""

    def __init__(
        self,
        inference: InferenceService,
        servers: Servers,
        head: GrpcHead,
        messages: MessageStream,
        held: AsyncExitStack,
        *,
        request_timeout_s: float,
        errors_end_stream: bool,
    ) -> None:
        """What `held` is given is released when the call ends."""
        self._inference = inference
        self._servers = servers
        self._deaths = inference.dispatch.deaths
        self._head = head
        self._messages = messages
        self._held = held
        self._request_timeout_s = request_timeout_s
        self._errors_end_stream = errors_end_stream
        self._streams: dict[Upstream, GrpcStream] = {}
        self._opening = asyncio.Lock()  # two requests must not open two streams to the same server
        self._called: dict[str, _Called] = {}
        """By model."""
        self._reservations: dict[str, tuple[Upstream, str]] = {}
        """For each model its server, with the server's name."""

    async def reserve(self, asked: StreamRequest, timeout_s: float) -> Upstream:
        """Return the server for a decoupled model: one server for all requests of this call for that model. A suspect waits for its
        turn. Raises QueryOfDeath."""
        if asked.call.classified or asked.call.sequence_id:
            timeout_s = await self._inference.require_harmless(asked.call, timeout_s)
        model = asked.call.model_name
        if model not in self._reservations:
            held = self._inference.dispatch.server_for(asked.call, timeout_s=timeout_s, running=asked.running)
            server = await self._held.enter_async_context(held)
            self._reservations.setdefault(model, (server, asked.running.server))  # a concurrent request may have been first
        server, asked.running.server = self._reservations[model]
        if self._deaths.watches(model):
            async with self._deaths.turn(_Message(asked.message.frame), asked.call, timeout_s=timeout_s) as asked.suspect:
                if asked.suspect is not None:
                    asked.suspect.begin_stream()  # nobody tells when it has been answered
        return server

    async def send(self, asked: StreamRequest, server: Upstream, tasks: asyncio.TaskGroup) -> None:
        """Send a request; its responses go to the caller in a task of `tasks`."""
        async with self._opening:
            stream = self._streams.get(server) or await self._open(server, tasks)
        called = self._called_on(stream, asked)
        asked.running.sent(asked.running.server)
        asked.running.continues_at_triton = True
        called.sends(asked)
        await stream.send(asked.message.frame)

    def half_close(self) -> None:
        """Tell Triton that no more requests follow."""
        for stream in self._streams.values():
            stream.half_close()

    def cancel(self) -> None:
        """Cancel all streams."""
        for stream in self._streams.values():
            stream.cancel()

    def are_idle(self) -> bool:
        """Whether each request is taken to be done."""
        return all(called.is_idle() for called in self._called.values())

    def _called_on(self, stream: GrpcStream, asked: StreamRequest) -> _Called:
        model = asked.call.model_name
        called = self._called.get(model)
        if called is None or called.stream is not stream:
            called = self._called[model] = _Called(stream, self._request_timeout_s, self._deaths)
            self._held.callback(self._inference.dispatch.streams.add(asked.running.server, model, called))
        return called

    async def _open(self, server: Upstream, tasks: asyncio.TaskGroup) -> GrpcStream:
        stream = await server.grpc.open_stream(self._head, timeout_s=self._request_timeout_s)
        self._streams[server] = stream
        tasks.create_task(self._relay_responses(server, stream), name="grpc-stream-decoupled")
        return stream

    async def _relay_responses(self, server: Upstream, stream: GrpcStream) -> None:
        while (frame := await stream.receive()) is not None:
            if (dead := dead_model_in(frame)) is not None:
                self._met_dead_stub(stream, dead)
            if self._errors_end_stream:
                raise_model_error(frame)
            await self._messages.send(frame, stream.headers)
        self._streams.pop(server, None)
        ended = [self._called.pop(model) for model, called in tuple(self._called.items()) if called.stream is stream]
        for called in ended:
            if called.lost is not None:
                raise StreamEnded(failure(called.lost))
        if stream.is_broken_off and await self._servers.goes_down(server, within_s=NOTICED_S):
            # Each is noted, whichever is guilty.
            for guilty in [called.guilty(is_stub=False) for called in ended]:
                if guilty is not None:
                    raise StreamEnded(failure(guilty))
        answer = answer_of(stream.headers, (), stream.trailers)
        if answer.code != 0:
            raise StreamEnded(answer)

    def _met_dead_stub(self, stream: GrpcStream, dead: str) -> None:
        """Tell of a stub that Triton takes for dead; most are seen to die, and then the stream has ended."""
        here = [model for model, called in self._called.items() if called.stream is stream and (not dead or model == dead)]
        if len(here) == 1:
            (model,) = here
            _, server = self._reservations[model]
            self._inference.dispatch.met_dead_stub(server, model, sent_s=self._called[model].sent_s)
