"""Generation service: answers a call for generated text by way of `inference/inference`, as any request is answered.

For callers who send texts, not tensors (`frontends/completions`). What a call asks of its model is only made once a server has
been chosen: a route's name may stand for several models, each with a chat template of its own. Answers are never cached: who
asks again at a temperature above 0 wants another answer, and equal ones at 0 are rare.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from copy import copy
from functools import partial
from typing import Protocol
from uuid import uuid4

from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.algorithms.steps import Steps, finish
from control_plane.core.errors import DeadlineExceeded, InvalidRequest
from control_plane.core.infer_call import Frontend, InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.generation.domain.completion_answer import CompletionAnswer
from control_plane.generation.domain.completion_request import CompletionRequest, GenerationLimits, request_steps
from control_plane.generation.domain.generation_tensors import request_message
from control_plane.generation.domain.generative_model import GenerativeModel
from control_plane.generation.domain.messages import without_control_tokens
from control_plane.generation.generated_stream import GeneratedStream
from control_plane.generation.generative_models import GenerativeModels
from control_plane.generation.ports import ChatTemplates
from control_plane.inference.governance import Meter
from control_plane.inference.in_flight.unparsed_request import UnparsedRequest
from control_plane.inference.inference import InferenceService
from control_plane.inference.routes.targets import Assignee
from control_plane.protocols.grpc import GrpcHead, frame_message
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.triton.ports import HttpStream, ModelStream, RegionUpstream, Slot, Upstream

_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
_HEAD = GrpcHead(_METHOD)
_TRACEPARENT = b"traceparent"
_LARGE_BYTES = 64 * 1024
"""Parsing this much takes some 0.3 ms."""


class CompletionCall(UnparsedRequest, Assignee, Protocol):
    """A call for generated text as its frontend holds it."""

    principal: Principal
    is_chat: bool

    @property
    def timeout_s(self) -> float | None:
        """The caller's timeout in seconds; None where the caller gives none. Raises InvalidRequest."""

    def body(self) -> bytes | bytearray:
        """The body, which is not parsed yet. Raises InvalidRequest: it is encoded."""

    def stream_on(self, gateway: RegionUpstream, *, timeout_s: float) -> Awaitable[HttpAnswer | ModelStream]:
        """See `inference/requests.GenerateRequest`."""


class Generation:
    """Application service for calls for generated text."""

    def __init__(
        self,
        *,
        inference: InferenceService,
        models: GenerativeModels,
        templates: ChatTemplates,
        limits: GenerationLimits,
        meter: Meter,
    ) -> None:
        self._inference = inference
        self.models = models
        self.templates = templates
        self.limits = limits
        self.meter = meter

    async def generate(self, call: CompletionCall) -> HttpAnswer | HttpStream:
        """Answer a call: with a stream of events if it asks for one, which must be closed. Cancelling it ends the generation.

        Raises:
            InvalidRequest, PayloadTooLarge, ModelNotFound, PermissionDenied, LimitExceeded, Overloaded, DeadlineExceeded,
            UpstreamUnavailable, UpstreamFailed.
        """
        request = _GenerationRequest(call, self)
        answer = await self._inference.generate(request)
        if isinstance(answer, HttpAnswer) or not request.sends_whole:
            return answer
        pieces = []
        try:
            while (piece := await answer.receive()) is not None:
                pieces.append(piece)
        finally:
            answer.close()
        return make_answer(200, b"".join(pieces), headers=[(b"tidegate-model", request.model.encode())])


class _GenerationRequest:
    """One call as `inference/requests.GenerateRequest`."""

    frontend = Frontend.HTTP

    def __init__(self, call: CompletionCall, service: Generation) -> None:
        self._call = call
        self._service = service
        self.principal = call.principal
        self.slot: Slot | None = None
        self.wanted = CompletionRequest("", 0)
        self.model = self._version = ""
        self._head = _HEAD

    @property
    def sends_whole(self) -> bool:
        return not self.wanted.is_streamed

    @property
    def timeout_s(self) -> float | None:
        return self._call.timeout_s

    def read_at_once(self) -> InferCall | None:
        return finish(self._read()) if self._call.body_bytes() <= _LARGE_BYTES else None

    def read(self) -> Steps[InferCall]:
        yield  # others first: a body of a megabyte takes some milliseconds
        return (yield from self._read())

    def _read(self) -> Steps[InferCall]:
        body = self._call.body()
        self.wanted = yield from request_steps(body, is_chat=self._call.is_chat, limits=self._service.limits)
        self.model = self.wanted.model
        return InferCall(self.model, "", "", (), text_bytes=len(body), is_open_ended=True)

    def name_seen(self) -> str:
        return self._call.name_seen()

    def header_id(self) -> str:
        return self._call.header_id()

    def body_bytes(self) -> int:
        return self._call.body_bytes()

    def field(self, name: str) -> str | None:
        return self._call.field(name)

    def unit(self, call: InferCall) -> tuple[bytes, ...]:
        return self._call.unit(call)

    def content(self, call: InferCall) -> tuple[bytes, ...]:
        """The text that the model is given, however many tokens are asked for, and how it is to choose them."""
        wanted = self.wanted
        return tuple(part.encode() for each in wanted.messages for part in each.values()) or (wanted.prompt.encode(),)

    def readdress(self, model_name: str, model_version: str) -> None:
        self.model, self._version = model_name, model_version

    def choose(self, model_name: str) -> None:
        """Nothing: each answer names its model."""

    def head_with_model(self, head: bytes) -> bytes:
        return head

    def with_traceparent(self, value: bytes) -> _GenerationRequest:
        own = copy(self)
        own._head = GrpcHead(_METHOD, ((_TRACEPARENT, value),))
        return own

    def outcome(self, answer: HttpAnswer | HttpStream) -> Outcome:
        if answer.status == 200:
            return Outcome.ANSWERED
        return Outcome.MODEL_NOT_FOUND if answer.status == 404 else Outcome.UPSTREAM_ERROR

    async def stream(self, server: Upstream, *, timeout_s: float) -> HttpAnswer | ModelStream:
        """Ask the model, and return once its first response has come. Raises what `Generation.generate` raises."""
        wanted, began_s = self.wanted, asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout_s) as until:
                model = await self._service.models.describe(self.model, self._version, timeout_s=timeout_s, server=server)
                prompt = await self._prompt(model) if wanted.is_chat else wanted.prompt
                id_ = f"{'chatcmpl' if wanted.is_chat else 'cmpl'}-{uuid4().hex}"
                message = request_message(wanted, model, prompt, name=self.model, version=self._version, request_id=id_)
                stream = await server.grpc.open_stream(self._head, timeout_s=timeout_s)
                try:
                    await stream.send(frame_message(message))
                except BaseException:
                    stream.cancel()
                    raise
        except TimeoutError as exc:
            if not until.expired():
                raise
            raise DeadlineExceeded("Deadline Exceeded") from exc
        stream.half_close()
        answer = CompletionAnswer(wanted, id_=id_, created_s=int(time.time()))
        left_s = timeout_s - (asyncio.get_running_loop().time() - began_s)
        generated = GeneratedStream(
            stream,
            answer,
            model=self.model,
            is_whole=self.sends_whole,
            timeout_s=left_s,
            count_tokens=partial(self._service.meter.add_tokens, self.principal.tenant, self.model),
        )
        try:
            failure = await generated.begin()
        except BaseException:
            generated.close()
            raise
        if failure is None:
            return generated
        generated.close()
        return failure

    def stream_on(self, gateway: RegionUpstream, *, timeout_s: float) -> Awaitable[HttpAnswer | ModelStream]:
        return self._call.stream_on(gateway, timeout_s=timeout_s)

    async def _prompt(self, model: GenerativeModel) -> str:
        if model.chat is None:
            raise InvalidRequest(f"model {self.model!r} {model.no_chat}", field="model")
        messages = await run_in_steps(without_control_tokens(self.wanted.messages, model.chat.control_tokens))
        return await self._service.templates.render(model.chat, messages, max_bytes=self._service.limits.max_prompt_bytes)
