"""OpenAI frontend over HTTP: `/v1/embeddings` and `/v1/models`, for unmodified OpenAI clients; `frontends/batches` has files
and batches.

An answer's `model` is the name that the caller used, since some clients compare it; the header
`tidegate-model` names the model that computed it. Source:
https://platform.openai.com/docs/api-reference/embeddings.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from control_plane.auth.access import Access
from control_plane.auth.domain.authorization import need_of_call
from control_plane.auth.stream_rights import StreamRights
from control_plane.cache.domain.cached_response import HEADER, forbids_cached_answer
from control_plane.core.action import Action
from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import InvalidRequest, ModelNotFound, PayloadTooLarge, RouteNotFound
from control_plane.core.infer_call import Frontend, InferCall
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.embeddings.domain.openai_request import (
    EmbeddingsRequest,
    answer_steps,
    model_answer,
    model_seen,
    models_answer,
    request_steps,
)
from control_plane.embeddings.embeddings import Embeddings, EmbeddingsAnswer
from control_plane.embeddings.text_models import TextModels
from control_plane.frontends.common.caller import identify, reauthenticate, timeout_s_of
from control_plane.frontends.http.streams import watched
from control_plane.inference.inference import InferenceService
from control_plane.inference.route_targets import WHOLE_BYTES, ends_of
from control_plane.inference.run_steps import run_in_steps
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer, no_content
from control_plane.protocols.kserve.routes import V2Route, read_route
from control_plane.triton.ports import HttpStream

_LOOKED_THROUGH_BYTES = 16 * 1024
"""Largest body that is parsed only to record a refusal under its model's name; that takes some 50 us."""

_MAX_BATCH_CALL_BYTES = 1 << 20
"""Largest body of a call for a batch, which names a file and has none."""


class HttpEmbeddingsCall:
    """One embeddings request over HTTP: `embeddings/embeddings.EmbeddingsCall`."""

    __slots__ = ("_http", "principal")
    frontend = Frontend.HTTP

    def __init__(self, http: HttpRequest, principal: Principal) -> None:
        self._http = http
        self.principal = principal

    @property
    def timeout_s(self) -> float | None:
        return timeout_s_of(self._http)

    @property
    def accepts_cached_answers(self) -> bool:
        return not forbids_cached_answer(self._http.text_header(b"cache-control"))

    def name_seen(self) -> str:
        """The model in a small body; parsing a large one costs more than a refusal is worth."""
        return model_seen(self._http.body) if len(self._http.body) <= _LOOKED_THROUGH_BYTES else ""

    def header_id(self) -> str:
        return self._http.request_id

    def body_bytes(self) -> int:
        return len(self._http.body)

    def field(self, name: str) -> str | None:
        return self._http.text_header(name.encode())

    def unit(self, call: InferCall) -> tuple[bytes, ...]:
        body = self._http.body
        return (bytes(body),) if len(body) <= WHOLE_BYTES else ends_of(body)

    def read(self) -> Steps[EmbeddingsRequest]:
        if self._http.header(b"content-encoding") is not None:
            raise InvalidRequest("a Content-Encoding is not supported here; send the body as it is")
        return request_steps(self._http.body)


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
        batches: BatchesApplication | None = None,
    ) -> None:
        """Without `batches` there are neither files nor batches."""
        self._batches = batches
        self._inference = inference
        self._embeddings = embeddings
        self._models = models
        self._access = access
        self._read_timeout_s = read_timeout_s
        self._rights = StreamRights(access)

    def admit(self, request: HttpRequest) -> None:
        """Refuse a request by its head alone, so that its body need not be read.

        Raises RouteNotFound, MethodNotAllowed, ModelNotFound, Unauthenticated, PermissionDenied,
        LimitExceeded.
        """
        route, principal = self._admitted(request)
        if route.action is Action.EMBED and not request.body:
            self._inference.refuse_by_head(Frontend.HTTP, principal, HttpEmbeddingsCall(request, principal))

    async def answer(self, request: HttpRequest) -> HttpAnswer | HttpStream:
        """Answer one request. Raises ControlPlaneError."""
        route, principal = self._admitted(request)
        if route.action is Action.EMBED:
            embedded = await self._embeddings.embed(HttpEmbeddingsCall(request, principal))
            return await self._rendered(embedded)
        if route.action is Action.OPTIONS:
            return no_content([(b"Allow", ", ".join(route.allowed).encode())])
        if route.action is Action.FILES or route.action is Action.BATCHES:
            if self._batches is None:
                raise RouteNotFound("files and batches are switched off on this server (TIDEGATE_JOBS)")
            answering = self._batches.answer(request, route, principal)
            if request.stream is None or principal is ANONYMOUS:
                return await answering
            return await watched(answering, self._rights.watch(principal, partial(reauthenticate, self._access, request)))
        return await self._tell_models(route.model_name, principal)

    def _admitted(self, request: HttpRequest) -> tuple[V2Route, Principal]:
        """Route and authenticate a request; embeddings are authorised later, when the body shows the model's
        name."""
        route = read_route(request.method, request.target)
        need = need_of_call(route.action, route.model_name)
        principal = identify(self._access, request)
        if route.action is not Action.EMBED:
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
        usable = await self._models.usable(principal, timeout_s=self._read_timeout_s)
        if not name:
            return make_answer(200, models_answer(usable))
        if name not in usable:
            raise ModelNotFound(f"the model {name!r} does not exist, is not ready, or makes no embeddings of texts")
        return make_answer(200, model_answer(name))
