"""Streams to Triton of one ModelStreamInfer call: its requests to decoupled models, and their responses.

A decoupled model sends any number of responses to a request and need not mark the last one, so what a request has come to cannot be
observed here.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import inf

from control_plane.core.errors import UpstreamUnavailable
from control_plane.frontends.grpc.handler import failure
from control_plane.frontends.grpc.message_stream import MessageStream
from control_plane.frontends.kserve.grpc_stream_messages import StreamEnded, raise_model_error
from control_plane.frontends.kserve.grpc_stream_request import StreamRequest
from control_plane.inference.inference import InferenceService
from control_plane.protocols.grpc import GrpcHead, answer_of
from control_plane.triton.ports import GrpcStream, Upstream


@dataclass(slots=True)
class _Called:
    """A decoupled model that was called on a stream; implements `triton/open_streams.OpenStream`."""

    stream: GrpcStream
    request_timeout_s: float
    sent_s: float = -inf
    lost: UpstreamUnavailable | None = None

    @property
    def heard_s(self) -> float:
        return self.stream.heard_s

    def is_idle(self) -> bool:
        """Whether its requests are taken to be done: nothing has gone or come for as long as one may take."""
        return max(self.sent_s, self.heard_s) < asyncio.get_running_loop().time() - self.request_timeout_s

    def fail(self, error: UpstreamUnavailable) -> None:
        if not self.is_idle():
            self.lost = error
            self.stream.cancel()


class DecoupledStreams:
    """Streams of one call to the servers of the decoupled models that it calls: one to each server."""

    def __init__(
        self,
        inference: InferenceService,
        head: GrpcHead,
        messages: MessageStream,
        held: AsyncExitStack,
        *,
        request_timeout_s: float,
        errors_end_stream: bool,
    ) -> None:
        """What `held` is given is released when the call ends."""
        self._inference = inference
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
        """Return the server for a decoupled model: one server for all requests of this call for that model."""
        if asked.call.classified or asked.call.sequence_id:
            timeout_s = await self._inference.require_harmless(asked.call, timeout_s)
        model = asked.call.model_name
        if model not in self._reservations:
            held = self._inference.dispatch.server_for(asked.call, timeout_s=timeout_s, running=asked.running)
            server = await self._held.enter_async_context(held)
            self._reservations.setdefault(model, (server, asked.running.server))  # a concurrent request may have been first
        server, asked.running.server = self._reservations[model]
        return server

    async def send(self, asked: StreamRequest, server: Upstream, tasks: asyncio.TaskGroup) -> None:
        """Send a request; its responses go to the caller in a task of `tasks`."""
        async with self._opening:
            stream = self._streams.get(server) or await self._open(server, tasks)
        called = self._called_on(stream, asked)
        asked.running.sent(asked.running.server)
        asked.running.continues_at_triton = True
        called.sent_s = asyncio.get_running_loop().time()
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
            called = self._called[model] = _Called(stream, self._request_timeout_s)
            self._held.callback(self._inference.dispatch.streams.add(asked.running.server, model, called))
        return called

    async def _open(self, server: Upstream, tasks: asyncio.TaskGroup) -> GrpcStream:
        stream = await server.grpc.open_stream(self._head, timeout_s=self._request_timeout_s)
        self._streams[server] = stream
        tasks.create_task(self._relay_responses(server, stream), name="grpc-stream-decoupled")
        return stream

    async def _relay_responses(self, server: Upstream, stream: GrpcStream) -> None:
        while (frame := await stream.receive()) is not None:
            if self._errors_end_stream:
                raise_model_error(frame)
            await self._messages.send(frame, stream.headers)
        self._streams.pop(server, None)
        for model in [model for model, called in self._called.items() if called.stream is stream]:
            if (lost := self._called.pop(model).lost) is not None:
                raise StreamEnded(failure(lost))
        answer = answer_of(stream.headers, (), stream.trailers)
        if answer.code != 0:
            raise StreamEnded(answer)
