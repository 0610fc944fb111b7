"""ModelStreamInfer: one client's stream of requests and answers.

Triton 24.10 dies when requests to decoupled and to ordinary models are streamed at the same time, be it on one stream or on
two of different clients. So only decoupled ones go on as a stream, of this client's own; an ordinary request goes on as a
ModelInfer call and its answer comes back in a stream's envelope, in the order of the requests. `triton_grpc_error`, of
which Triton dies too, is not passed on but done here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from tritonclient.grpc import service_pb2

from control_plane.auth.stream_rights import StreamRights
from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, InvalidRequest
from control_plane.core.infer_call import InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.core.steps import Steps
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.inflating import inflated
from control_plane.frontends.common.status import message_of
from control_plane.frontends.grpc.call import MessageStream, failure
from control_plane.inference.inference import InferenceService
from control_plane.inference.model_kinds import ModelKinds
from control_plane.inference.run_steps import in_slices
from control_plane.inference.running_request import RunningRequest
from control_plane.protocols.grpc import (
    HEAD,
    PREFIX_BYTES,
    GrpcAnswer,
    GrpcHead,
    MessageFrame,
    answer_of,
    frame_message,
    is_compressed,
    message_in,
    message_pieces,
    status_answer,
    status_fields,
)
from control_plane.protocols.kserve.body_limits import BodyLimits, InflateBound
from control_plane.protocols.kserve.infer_proto import infer_request_steps
from control_plane.protocols.kserve.model_reference import aimed_at, model_in
from control_plane.protocols.kserve.stream_answer import stream_answer
from control_plane.protocols.protobuf_fields import fields
from control_plane.triton.ports import GrpcCall, GrpcStream, Upstream
from control_plane.triton.servers import Servers

_MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
_ERRORS_END_IT = (b"triton_grpc_error", b"true")
"""Asks for a status instead of an error on the stream."""

_ID = 3 << 3 | 2
"""Tag of that field in a ModelInferRequest."""
_MAX_ID_BYTES = 1024
_LOOKED_THROUGH_BYTES = 64 * 1024
_MAX_FIELDS = 4096
"""Of a message that was refused, which is looked through for its id: some milliseconds."""
_HELD = InflateBound(0, "the message has not been inflated")
"""Of a compressed message that nobody holds (`frontends/common/inflating`)."""
_ANSWER = InflateBound(2**31 - 1, "the answer is too large")

_INTERNAL = 13
_MAX_UNANSWERED = 64
"""Ordinary requests of one stream at a time; then its client is held back."""

_ENDED_WELL = GrpcAnswer(0, HEAD, (), status_fields(0, ""))


_OUTCOMES = {0: Outcome.ANSWERED, 4: Outcome.DEADLINE_EXCEEDED, 5: Outcome.MODEL_NOT_FOUND, 14: Outcome.UNAVAILABLE}


def outcome_of_code(code: int) -> Outcome:
    """What a gRPC status of Triton's, or of the way to it, amounts to."""
    return _OUTCOMES.get(code, Outcome.UPSTREAM_ERROR)


class InferMessage:
    """The ModelInferRequest in a frame."""

    __slots__ = ("_failure", "_limits", "frame", "head", "inflated")

    def __init__(self, frame: MessageFrame, head: GrpcHead, limits: BodyLimits) -> None:
        self.frame = frame
        self.head = head
        self._limits = limits
        self._failure: ControlPlaneError | None = None
        self.inflated: memoryview | None = None
        """Of a compressed one what it inflates to, as long as that is held."""

    @property
    def is_compressed(self) -> bool:
        return is_compressed(self.frame)

    def pieces(self) -> Iterator[bytes]:
        """As `message_pieces`."""
        bound = self._limits.inflated(len(self.frame))
        return message_pieces(self.frame, self.head.encoding, bound)

    def fail(self, error: ControlPlaneError) -> None:
        """Let `read` find that it cannot be inflated, so that it is recorded as every refusal is."""
        self._failure = error

    def read(self) -> Steps[InferCall]:
        if self._failure is not None:
            raise self._failure
        return infer_request_steps(self._message(), service_pb2.ModelInferRequest.FromString, self._limits)

    def aim_at(self, model_name: str, model_version: str) -> None:
        """Let it go to this model, whatever it names."""
        self.frame = frame_message(aimed_at(self._message(), model_name, model_version))

    def name_seen(self) -> str:
        """Of a small message: looking through a large one, or undoing a compression, is more than a refusal is worth."""
        if self.is_compressed or len(self.frame) > _LOOKED_THROUGH_BYTES:
            return ""
        try:
            return model_in(memoryview(self.frame)[PREFIX_BYTES:])[0]
        except InvalidRequest:  # it may be refused for just that
            return ""

    def header_id(self) -> str:
        return self.head.request_id

    def id(self) -> str:
        """What a refused request calls itself, so that its sender can tell which one it was."""
        try:
            found = islice(fields(memoryview(self._message())), _MAX_FIELDS)
            values = [payload for tag, _, payload in found if tag == _ID]
            return bytes(values[-1][:_MAX_ID_BYTES]).decode(errors="replace") if values else ""
        except ControlPlaneError:  # it may have been refused for just that
            return ""

    def _message(self) -> bytes | memoryview:
        if self.inflated is not None:
            return self.inflated
        return message_in(self.frame, self.head.encoding, _HELD)


@dataclass(frozen=True, slots=True)
class _Infer:
    """An ordinary request as it goes on: `inference/inference.ServerRequest`."""

    call: GrpcCall

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[GrpcAnswer]:
        return server.grpc.unary(self.call, timeout_s=timeout_s)

    def outcome(self, answer: GrpcAnswer) -> Outcome:
        return outcome_of_code(answer.code)


class StreamRelay:
    """Answers ModelStreamInfer calls."""

    def __init__(
        self,
        *,
        inference: InferenceService,
        rights: StreamRights,
        servers: Servers,
        kinds: ModelKinds,
        limits: BodyLimits,
        budget: BodyBudget,
        request_timeout_s: float,
    ) -> None:
        self.rights = rights
        self.inference = inference
        self.servers = servers
        self.kinds = kinds
        self.limits = limits
        self.budget = budget
        self.request_timeout_s = request_timeout_s

    async def run(self, head: GrpcHead, messages: MessageStream, principal: Principal, *, identify: Callable[[], Principal]) -> GrpcAnswer:
        """Relay until both sides have finished; cancelling it cancels at Triton.

        Raises:
            DeadlineExceeded, UpstreamUnavailable. Unauthenticated: by `identify`, asked for each request and every moment, the caller's
                key or token is no longer valid.
        """
        watch = self.rights.watch(principal, identify)
        try:
            async with watch:
                return await self._run(head, messages, principal, identify)
        finally:
            watch.close()

    async def _run(self, head: GrpcHead, messages: MessageStream, principal: Principal, identify: Callable[[], Principal]) -> GrpcAnswer:
        with self.inference.running.begin_stream(principal) as running:
            self.servers.pick()  # without one the client is told at once
            try:
                async with asyncio.timeout(head.timeout_s):
                    answer = await _StreamCall(self, head, messages, running, identify).run()
            except TimeoutError as exc:
                raise DeadlineExceeded("Deadline Exceeded") from exc
            running.outcome = Outcome.ANSWERED if answer.code == 0 else Outcome.UPSTREAM_ERROR
            return answer


class _Ended(Exception):
    """The call ends with a status before the client has finished."""

    def __init__(self, answer: GrpcAnswer) -> None:
        super().__init__(answer.details)
        self.answer = answer


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """One request of a stream that has been let in."""

    message: InferMessage
    named: InferCall
    call: InferCall
    """As it goes to Triton."""
    deadline_s: float | None
    """The route's."""
    running: RunningRequest

    async def turn(self, relay: StreamRelay) -> float:
        """Seconds that it has. Raises Overloaded."""
        timeout_s = relay.request_timeout_s if self.deadline_s is None else self.deadline_s
        return await relay.inference.turn(self.running, timeout_s=timeout_s)


_Asking: TypeAlias = asyncio.Task[tuple[str, GrpcAnswer | None]]


class _StreamCall:
    """One call."""

    def __init__(
        self, relay: StreamRelay, head: GrpcHead, messages: MessageStream, running: RunningRequest, identify: Callable[[], Principal]
    ) -> None:
        metadata = tuple(field for field in head.metadata if field[0] != _ERRORS_END_IT[0])
        self._relay = relay
        self._messages = messages
        self._running = running
        self._identify = identify
        self._errors_end_it = _ERRORS_END_IT in head.metadata
        self._stream_head = GrpcHead(head.method, metadata, None, head.encoding, request_id=head.request_id)
        self._infer_head = GrpcHead(_MODEL_INFER, metadata, None, head.encoding)
        self._decoupled: dict[Upstream, GrpcStream] = {}
        """To the servers that have the decoupled models it has asked; each of these keeps its place there until the end."""
        self._opening = asyncio.Lock()
        self._places: dict[str, tuple[Upstream, str]] = {}
        """By model, the server that has it, and its name."""
        self._held = AsyncExitStack()
        self._unanswered: asyncio.Queue[_Asking | None] = asyncio.Queue(_MAX_UNANSWERED)
        self._under_way: set[_Asked] = set()
        self._sequences: dict[tuple[str, str], _Asking] = {}
        """The last request of each, which the next one has to wait for."""

    async def run(self) -> GrpcAnswer:
        try:
            async with self._held, asyncio.TaskGroup() as tasks:
                answers = tasks.create_task(self._answer_in_order(), name="grpc-stream-answers")
                while (frame := await self._messages.receive()) is not None:
                    await self._take(InferMessage(frame, self._stream_head, self._relay.limits), tasks)
                await self._unanswered.put(None)
                await answers  # among those that wait for their models may be some for decoupled ones
                for stream in self._decoupled.values():
                    stream.half_close()
        except BaseExceptionGroup as group:
            first = group.exceptions[0]
            if isinstance(first, _Ended):
                return first.answer
            raise first from None
        finally:
            for stream in self._decoupled.values():
                stream.cancel()
            for asked in tuple(self._under_way):  # a task that is cancelled before it begins does nothing at its end
                self._end(asked, Outcome.ABANDONED)
        return _ENDED_WELL

    async def _take(self, message: InferMessage, tasks: asyncio.TaskGroup) -> None:
        """Send one request on; one that is refused is answered on the stream, which goes on.

        But not for a caller whose key has been revoked meanwhile. Raises Unauthenticated.
        """
        principal = self._identify()
        if message.is_compressed:
            async with inflated(message, self._relay.budget):
                asked = await self._let_in(message, principal)
        else:
            asked = await self._let_in(message, principal)
        if asked is None:
            return
        if self._running.named is None:
            self._running.is_about(asked.call, named=asked.named)
        is_decoupled = await self._relay.kinds.is_decoupled(asked.call.model_name)
        if is_decoupled and (asked.call.model_name, asked.call.sequence_id) not in self._sequences:
            await self._pass_on(asked, tasks)
        else:  # or nobody knows, before it is loaded: the messages behind it do not wait for that
            await self._unanswered.put(self._start(asked, tasks))

    async def _let_in(self, message: InferMessage, principal: Principal) -> _Asked | None:
        """None of one that is refused, which has been answered."""
        try:
            return await self._read(message, principal)
        except ControlPlaneError as exc:
            await self._messages.send(_error(message.id(), message_of(exc)))
            return None

    async def _read(self, message: InferMessage, principal: Principal) -> _Asked:
        """A request that may be sent on. Raises ControlPlaneError, and meters it as refused."""
        inference = self._relay.inference
        running = inference.running.begin_within_stream(principal, message)
        with running:
            if not running.enter():
                await running.enter_when_told()
            named = await in_slices(message.read())
            call, route = inference.resolve(named, principal)
            if route is not None:
                message.aim_at(call.model_name, call.model_version)
            running.understood(call, named=named)
            running.go_on()
        asked = _Asked(message, named, call, route.deadline_s if route is not None else None, running)
        self._under_way.add(asked)
        return asked

    def _end(self, asked: _Asked, outcome: Outcome | None = None) -> None:
        self._under_way.discard(asked)
        asked.running.end(outcome)

    # Ordinary models, and those that may be

    def _start(self, asked: _Asked, tasks: asyncio.TaskGroup) -> _Asking:
        sequence = (asked.call.model_name, asked.call.sequence_id)
        asking = tasks.create_task(self._ask(asked, self._sequences.get(sequence), tasks), name="grpc-stream-request")
        if asked.call.sequence_id:
            self._sequences[sequence] = asking
            asking.add_done_callback(lambda done: self._sequences.pop(sequence, None) if self._sequences.get(sequence) is done else None)
        return asking

    async def _ask(self, asked: _Asked, before: _Asking | None, tasks: asyncio.TaskGroup) -> tuple[str, GrpcAnswer | None]:
        """The request's id, and its answer; None: its model turned out to be decoupled."""
        now_s, running = asyncio.get_running_loop().time, asked.running
        answer: GrpcAnswer | None = None
        running.outcome = Outcome.ABANDONED
        try:
            if before is not None:
                await asyncio.wait((before,))
            timeout_s = await asked.turn(self._relay)
            deadline_s = now_s() + timeout_s
            if await self._turns_out_decoupled(asked.call.model_name, timeout_s):
                await self._send_decoupled(asked, await self._place(asked, deadline_s - now_s()), tasks)
                running.outcome = Outcome.ANSWERED
            else:
                infer, left_s = _Infer(GrpcCall(self._infer_head, asked.message.frame)), deadline_s - now_s()
                answer = await self._relay.inference.dispatch.send(infer, asked.call, timeout_s=left_s, running=running)
                running.answered(infer.outcome(answer), answer)
        except ControlPlaneError as exc:
            answer = failure(exc)
            running.fail(exc)
        finally:
            self._end(asked)
        return asked.call.request_id, answer

    async def _turns_out_decoupled(self, model: str, timeout_s: float) -> bool:
        """One that is nowhere is loaded first. No, also where Triton does not tell: what it says to the request then reaches the caller."""
        found = await self._relay.kinds.is_decoupled(model)
        if found is None:
            await self._relay.inference.dispatch.reading(model, timeout_s=timeout_s)
            found = await self._relay.kinds.is_decoupled(model)
        return bool(found)

    async def _answer_in_order(self) -> None:
        while (asking := await self._unanswered.get()) is not None:
            request_id, answer = await asking
            if answer is None:
                continue
            if answer.code == 0:
                message = await _message_of(answer)
                await self._messages.send(frame_message(stream_answer(message)), answer.headers)
            elif self._errors_end_it:
                raise _Ended(answer)
            else:
                await self._messages.send(_error(request_id, answer.details))

    # Decoupled models

    async def _pass_on(self, asked: _Asked, tasks: asyncio.TaskGroup) -> None:
        """Send it, which is all that is known of it: a decoupled model answers as often as it likes, and may never say when it is done."""
        try:
            server = await self._place(asked, await asked.turn(self._relay))
        except ControlPlaneError as exc:
            asked.running.fail(exc)
            self._end(asked)
            await self._messages.send(_error(asked.call.request_id, message_of(exc)))
            return
        await self._send_decoupled(asked, server, tasks)
        self._end(asked, Outcome.ANSWERED)

    async def _send_decoupled(self, asked: _Asked, server: Upstream, tasks: asyncio.TaskGroup) -> None:
        async with self._opening:
            stream = self._decoupled.get(server) or await self._open_decoupled(server, tasks)
        asked.running.sent(asked.running.server)
        asked.running.goes_on_at_triton = True
        await stream.send(asked.message.frame)

    async def _place(self, asked: _Asked, timeout_s: float) -> Upstream:
        """The same for all requests for a model."""
        model = asked.call.model_name
        if model not in self._places:
            held = self._relay.inference.dispatch.server_for(asked.call, timeout_s=timeout_s, running=asked.running)
            server = await self._held.enter_async_context(held)
            self._places.setdefault(model, (server, asked.running.server))  # another's may have been found meanwhile
        server, asked.running.server = self._places[model]
        return server

    async def _open_decoupled(self, server: Upstream, tasks: asyncio.TaskGroup) -> GrpcStream:
        stream = await server.grpc.open_stream(self._stream_head, timeout_s=self._relay.request_timeout_s)
        self._decoupled[server] = stream
        tasks.create_task(self._relay_answers(server, stream), name="grpc-stream-decoupled")
        return stream

    async def _relay_answers(self, server: Upstream, stream: GrpcStream) -> None:
        while (frame := await stream.receive()) is not None:
            if self._errors_end_it:
                _raise_models_error(frame)
            await self._messages.send(frame, stream.headers)
        self._decoupled.pop(server, None)
        answer = answer_of(stream.headers, (), stream.trailers)
        if answer.code != 0:
            raise _Ended(answer)


def _raise_models_error(frame: MessageFrame) -> None:
    """Triton ends a stream for a model's errors, which name the model, and not for those of requests that never reached one.

    Which status it would be the answer does not tell; INTERNAL is what a Python model's error has.
    """
    answer = service_pb2.ModelStreamInferResponse.FromString(bytes(frame[PREFIX_BYTES:]))
    if answer.error_message and answer.infer_response.model_name:
        raise _Ended(status_answer(_INTERNAL, answer.error_message))


def _error(request_id: str, text: str) -> bytes:
    """A message that tells of one request's failure."""
    answer = service_pb2.ModelStreamInferResponse(error_message=text)
    answer.infer_response.id = request_id
    return frame_message(answer.SerializeToString())


async def _message_of(answer: GrpcAnswer) -> bytes | memoryview:
    """Of a server's answer, which may be compressed and large."""
    frame = b"".join(answer.body)
    if not is_compressed(frame):
        return message_in(frame, answer.encoding, _ANSWER)
    pieces = []
    for piece in message_pieces(frame, answer.encoding, _ANSWER):
        pieces.append(piece)
        await asyncio.sleep(0)
    return b"".join(pieces)
