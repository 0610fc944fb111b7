"""OpenAI frontend over HTTP: `/v1/embeddings` and `/v1/models`, for unmodified OpenAI clients; `frontends/completions` has
completions and chats, `frontends/batches` files and batches.

An answer's `model` is the name that the caller used, since some clients compare it; the header
`tidegate-model` names the model that computed it. Source:
https://platform.openai.com/docs/api-reference/embeddings.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Protocol

from control_plane.auth.access import Access
from control_plane.auth.domain.authorization import need_of_call
from control_plane.auth.stream_rights import StreamRights
from control_plane.cache.domain.cached_response import HEADER, forbids_cached_answer
from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.action import Action
from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import ModelNotFound, PayloadTooLarge, RouteNotFound
from control_plane.core.infer_call import Frontend, InferCall
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.embeddings.domain.openai_request import (
    EmbeddingsRequest,
    answer_steps,
    request_steps,
)
from control_plane.embeddings.embeddings import Embeddings, EmbeddingsAnswer
from control_plane.embeddings.text_models import TextModels
from control_plane.frontends.common.caller import identify, reauthenticate, with_timeout
from control_plane.frontends.completions import CompletionsHttp
from control_plane.frontends.http.answers.streams import watched
from control_plane.frontends.openai_call import HttpOpenaiCall
from control_plane.generation.generation import Generation
from control_plane.inference.inference import InferenceService
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer, no_content, with_header
from control_plane.protocols.kserve.routes import V2Route, read_route
from control_plane.protocols.openai import model_answer, models_answer
from control_plane.triton.ports import HttpStream, RegionUpstream

_GENERATION = frozenset((Action.COMPLETE, Action.CHAT))
_MAX_BATCH_CALL_BYTES = 64 * 1024
"""Largest body of a call for a batch, which names a file and has none; its metadata has 9,216 characters at most."""


class HttpEmbeddingsCall(HttpOpenaiCall):
    """One embeddings request over HTTP: `embeddings/embeddings.EmbeddingsCall`."""

    __slots__ = ()

    @property
    def accepts_cached_answers(self) -> bool:
        return not forbids_cached_answer(self.http.text_header(b"cache-control"))

    def read(self) -> Steps[EmbeddingsRequest]:
        return request_steps(self.body())

    def content(self, call: InferCall) -> tuple[bytes, ...]:
        """Nothing: what is sent is its texts, in batches."""
        return ()

    def send_on(self, gateway: RegionUpstream, *, timeout_s: float) -> Awaitable[HttpAnswer]:
        return gateway.http.send(with_timeout(self.http, timeout_s), timeout_s=timeout_s)

    def with_field(self, answer: EmbeddingsAnswer | HttpAnswer, name: str, value: str) -> HttpAnswer:
        assert isinstance(answer, HttpAnswer), "it is another region's"
        return with_header(answer, f"{name}: {value}".encode())


class BatchesApplication(Protocol):
    """Answers the calls for files and batches, whose callers are authorised: `frontends/batches/http`."""

    async def answer(self, request: HttpRequest, route: V2Route, principal: Principal) -> HttpAnswer | HttpStream: ...


class OpenaiHttp:
    """The application behind the paths under `/v1/`."""

    def __init__(
        self,
        *,
        inference: InferenceService,
        embeddings: Embeddings,
        models: TextModels,
        access: Access,
        read_timeout_s: float,
        generation: Generation,
        batches: BatchesApplication | None = None,
    ) -> None:
        """Without `batches` there are neither files nor batches."""
        self._batches = batches
        self._generative_models = generation.models
        self._inference = inference
        self._embeddings = embeddings
        self._models = models
        self._access = access
        self._read_timeout_s = read_timeout_s
        self._rights = StreamRights(access)
        self._completions = CompletionsHttp(generation, inference, access, self._rights)

    def admit(self, request: HttpRequest) -> None:
        """Refuse a request by its head alone, so that its body need not be read.

        Raises RouteNotFound, MethodNotAllowed, ModelNotFound, Unauthenticated, PermissionDenied,
        LimitExceeded, PayloadTooLarge.
        """
        route, principal = self._admitted(request)
        if route.action in _GENERATION and not request.body:
            self._completions.admit(request, principal)
        if route.action is Action.EMBED and not request.body:
            self._inference.refuse_by_head(Frontend.HTTP, principal, HttpEmbeddingsCall(request, principal))

    async def answer(self, request: HttpRequest) -> HttpAnswer | HttpStream:
        """Answer one request. Raises ControlPlaneError."""
        route, principal = self._admitted(request)
        if route.action is Action.EMBED:
            embedded = await self._embeddings.embed_anywhere(HttpEmbeddingsCall(request, principal))
            return embedded if isinstance(embedded, HttpAnswer) else await self._rendered(embedded)
        if route.action in _GENERATION:
            return await self._completions.answer(request, route, principal)
        if route.action is Action.OPTIONS:
            return no_content([(b"Allow", ", ".join(route.allowed).encode())])
        if route.action is Action.FILES or route.action is Action.BATCHES:
            if self._batches is None:
                raise RouteNotFound("files and batches are switched off on this server (TIDEGATE_JOBS)")
            answering = self._batches.answer(request, route, principal)
            if principal is ANONYMOUS:
                return await answering
            return await watched(answering, self._rights.watch(principal, partial(reauthenticate, self._access, request)))
        return await self._tell_models(route.model_name, principal)

    def _admitted(self, request: HttpRequest) -> tuple[V2Route, Principal]:
        """Route and authenticate a request; where the body names the model it is authorised later, when that
        shows."""
        route = read_route(request.method, request.target)
        need = need_of_call(route.action, route.model_name)
        principal = identify(self._access, request)
        if route.action is not Action.EMBED and route.action not in _GENERATION:
            self._access.require(principal, need)
        if route.action is Action.BATCHES and max(len(request.body), request.content_length) > _MAX_BATCH_CALL_BYTES:
            raise PayloadTooLarge(f"the body of this call exceeds its limit of {_MAX_BATCH_CALL_BYTES} bytes")
        return route, principal

    async def _rendered(self, embedded: EmbeddingsAnswer) -> HttpAnswer:
        wanted = embedded.wanted
        body = await run_in_steps(answer_steps(embedded.rows, model=wanted.model, is_base64=wanted.is_base64))
        headers = [(b"tidegate-model", embedded.model.encode())]
        if embedded.status is not None:
            headers.append((HEADER.encode(), embedded.status.encode()))
            headers.append((b"tidegate-cache-hits", b"%d/%d" % (embedded.hits, len(embedded.rows))))
        return make_answer(200, body, headers=headers)

    async def _tell_models(self, name: str, principal: Principal) -> HttpAnswer:
        timeout_s = self._read_timeout_s
        embedding = await self._models.usable(principal, timeout_s=timeout_s)
        generative = await self._generative_models.usable(principal, timeout_s=timeout_s)
        usable = sorted({*embedding, *generative})
        if not name:
            return make_answer(200, models_answer(usable))
        if name not in usable:
            raise ModelNotFound(f"the model {name!r} does not exist, is not ready, or neither embeds texts nor generates any")
        return make_answer(200, model_answer(name))
