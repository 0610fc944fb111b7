"""ModelStreamInfer: one client's stream of requests and answers, relayed message by message.

Each client's stream is a stream of its own to Triton, never merged with another's. Decoupled and ordinary models on one
stream abort or hang Triton 24.10 within a few requests, so a stream that names both goes on as two, one for each kind;
the client does not see it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tritonclient.grpc import model_config_pb2, service_pb2

from control_plane.api.grpc_call import MessageStream
from control_plane.api.status import message_of
from control_plane.codec.grpc_message import (
    HEAD,
    PREFIX_BYTES,
    GrpcAnswer,
    GrpcHead,
    MessageFrame,
    answer_of,
    frame_message,
    message_in,
    status_answer,
    status_fields,
)
from control_plane.codec.infer_proto import infer_request_steps
from control_plane.codec.steps import Steps
from control_plane.domain.errors import ControlPlaneError, DeadlineExceeded
from control_plane.domain.inference import Door, InferCall, Outcome
from control_plane.ports import GrpcCall, GrpcStream, Upstream
from control_plane.services.inference import InferenceService
from control_plane.services.servers import Servers
from control_plane.services.slices import in_slices

_MODEL_CONFIG = GrpcHead("/inference.GRPCInferenceService/ModelConfig", ((b"content-type", b"application/grpc"),))
_ERRORS_END_IT = (b"triton_grpc_error", b"true")
"""Asks for a status instead of an error on the stream. Triton 24.10 dies of it within a few hundred errors, so the gateway does it;
the status is that of a Python model's error, since an answer does not tell which code it had."""

_INTERNAL = 13
_ENDED_WELL = GrpcAnswer(0, HEAD, (), status_fields(0, ""))


class InferMessage:
    """The ModelInferRequest in a frame."""

    __slots__ = ("_head", "_max_bytes", "frame")

    def __init__(self, frame: MessageFrame, head: GrpcHead, *, max_bytes: int) -> None:
        self.frame = frame
        self._head = head
        self._max_bytes = max_bytes

    def read(self) -> Steps[InferCall]:
        return infer_request_steps(self._message(), service_pb2.ModelInferRequest.FromString)

    def id(self) -> str:
        """What a refused request calls itself, so that its sender can tell which one it was."""
        try:
            return str(service_pb2.ModelInferRequest.FromString(bytes(self._message())).id)
        except Exception:  # it may have been refused for just that
            return ""

    def _message(self) -> bytes | memoryview:
        return message_in(self.frame, self._head.encoding, max_bytes=self._max_bytes)


class StreamRelay:
    """Answers ModelStreamInfer calls."""

    def __init__(self, *, inference: InferenceService, servers: Servers, max_message_bytes: int, open_timeout_s: float) -> None:
        self._inference = inference
        self._servers = servers
        self._max_message_bytes = max_message_bytes
        self._open_timeout_s = open_timeout_s

    async def run(self, head: GrpcHead, messages: MessageStream) -> GrpcAnswer:
        """Relay until both sides have finished. Raises DeadlineExceeded, UpstreamUnavailable; cancelling it cancels at Triton."""
        with self._inference.begin(Door.GRPC_STREAM) as count:
            lanes = _Lanes(self._servers.pick(), head, messages, open_timeout_s=self._open_timeout_s)
            try:
                async with asyncio.timeout(head.timeout_s):
                    answer = await self._relay(head, messages, lanes)
            except TimeoutError as exc:
                raise DeadlineExceeded("Deadline Exceeded") from exc
            finally:
                count.model_name = lanes.first_model
                lanes.cancel()
            count.outcome = Outcome.ANSWERED if answer.code == 0 else Outcome.UPSTREAM_ERROR
            return answer

    async def _relay(self, head: GrpcHead, messages: MessageStream, lanes: _Lanes) -> GrpcAnswer:
        try:
            async with asyncio.TaskGroup() as tasks:
                while (frame := await messages.receive()) is not None:
                    await self._pass_on(InferMessage(frame, head, max_bytes=self._max_message_bytes), messages, lanes, tasks)
                lanes.half_close()
        except BaseExceptionGroup as group:
            first = group.exceptions[0]
            if isinstance(first, _LaneFailed):
                return first.answer
            raise first from None
        return _ENDED_WELL

    async def _pass_on(self, message: InferMessage, messages: MessageStream, lanes: _Lanes, tasks: asyncio.TaskGroup) -> None:
        """Send one request to its lane; one that is refused is answered on the stream, which goes on."""
        try:
            call = await in_slices(message.read())
            self._inference.check(call)
        except ControlPlaneError as exc:
            answer = service_pb2.ModelStreamInferResponse(error_message=message_of(exc))
            answer.infer_response.id = message.id()
            await messages.send(frame_message(answer.SerializeToString()))
            return
        lane = await lanes.of(call.model_name, tasks)
        await lane.send(message.frame)


def _raise_models_error(frame: MessageFrame) -> None:
    """Triton ends a stream for a model's errors, which name the model, and not for those of requests that never reached one."""
    answer = service_pb2.ModelStreamInferResponse.FromString(bytes(frame[PREFIX_BYTES:]))
    if answer.error_message and answer.infer_response.model_name:
        raise _LaneFailed(status_answer(_INTERNAL, answer.error_message))


class _LaneFailed(Exception):
    """Triton ended a stream with an error; so ends the client's."""

    def __init__(self, answer: GrpcAnswer) -> None:
        super().__init__(answer.details)
        self.answer = answer


class _Lanes:
    """A client's stream towards Triton: one, or one for each kind of model."""

    def __init__(self, server: Upstream, head: GrpcHead, messages: MessageStream, *, open_timeout_s: float) -> None:
        self.first_model = ""
        self._server = server
        self._head = replace(head, metadata=tuple(field for field in head.metadata if field[0] != _ERRORS_END_IT[0]))
        self._messages = messages
        self._open_timeout_s = open_timeout_s
        self._errors_end_it = _ERRORS_END_IT in head.metadata
        self._is_decoupled: dict[str, bool] = {}
        self._streams: dict[bool, GrpcStream] = {}
        """By whether their models are of the other kind than the first."""

    async def of(self, model_name: str, tasks: asyncio.TaskGroup) -> GrpcStream:
        """The lane for a model's requests. A model's kind is asked for once a second model is named. Raises UpstreamUnavailable."""
        self.first_model = self.first_model or model_name
        if model_name != self.first_model:
            for name in (self.first_model, model_name):
                if name not in self._is_decoupled:
                    self._is_decoupled[name] = await self._ask(name)
        is_other_kind = self._is_decoupled.get(model_name) != self._is_decoupled.get(self.first_model)
        return self._streams.get(is_other_kind) or await self._open(is_other_kind, tasks)

    def half_close(self) -> None:
        for stream in self._streams.values():
            stream.half_close()

    def cancel(self) -> None:
        for stream in self._streams.values():
            stream.cancel()

    async def _open(self, is_other_kind: bool, tasks: asyncio.TaskGroup) -> GrpcStream:
        stream = self._streams[is_other_kind] = await self._server.grpc.open_stream(self._head, timeout_s=self._open_timeout_s)
        tasks.create_task(self._answer(stream), name="grpc-stream-answers")
        return stream

    async def _answer(self, stream: GrpcStream) -> None:
        while (frame := await stream.receive()) is not None:
            if self._errors_end_it:
                _raise_models_error(frame)
            await self._messages.send(frame, stream.headers)
        answer = answer_of(stream.headers, (), stream.trailers)
        if answer.code != 0:
            raise _LaneFailed(answer)

    async def _ask(self, model_name: str) -> bool:
        """Whether a model is decoupled; of one that does not exist, no: Triton's answer says so on the stream."""
        request = service_pb2.ModelConfigRequest(name=model_name).SerializeToString()
        answer = await self._server.grpc.unary(GrpcCall(_MODEL_CONFIG, frame_message(request)), timeout_s=self._open_timeout_s)
        if answer.code != 0:
            return False
        config: model_config_pb2.ModelConfig = service_pb2.ModelConfigResponse.FromString(answer.message).config
        return bool(config.model_transaction_policy.decoupled)
