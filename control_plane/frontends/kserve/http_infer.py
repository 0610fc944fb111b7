"""One inference request over HTTP, `infer` or `generate`, as `inference/inference` takes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from control_plane.cache.domain.cached_response import (
    RepeatedRequest,
    forbids_kept_answer,
    identity_of,
    json_without_id,
    keep_http,
    mark_http,
    restore_http,
)
from control_plane.cache.response_cache import CacheScope
from control_plane.core.action import Action
from control_plane.core.bounded_cache import BoundedCache
from control_plane.core.errors import ControlPlaneError
from control_plane.core.infer_call import CacheStatus, Door, InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.core.steps import Steps
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.caller import timeout_s_of
from control_plane.frontends.common.inflating import Inflated
from control_plane.inference.known_models import KnownModels
from control_plane.protocols.content_encoding import decoded_pieces, is_encoded
from control_plane.protocols.header_forwarding import HeaderForwarding
from control_plane.protocols.http1 import Body, HttpAnswer, HttpRequest
from control_plane.protocols.kserve.body_limits import BodyLimits, InflateBound
from control_plane.protocols.kserve.infer_json import infer_request_steps, json_object_steps
from control_plane.protocols.kserve.routes import V2Route, target_for
from control_plane.triton.ports import HttpStream, Upstream

MAX_KEYED_BYTES = 2**20
"""Of a request whose answer is kept: making a key of so much takes most of a millisecond."""
_KIND = b"http"
_REMEMBERED_BYTES = 4000
"""What is remembered of a request beside its body: mostly its last answer."""

MemoryKey = tuple[bytes, bytes | None, bytes, Body]
"""Of a request's target, the length of its JSON as its head has it, the fields that are forwarded by their names, and its body."""

RequestMemory = BoundedCache[MemoryKey, RepeatedRequest[HttpAnswer]]
"""Requests to models whose answers are kept: what repeats needs no second reading."""


@dataclass(frozen=True, slots=True)
class HttpInferDoor:
    """What all inference requests over HTTP have in common."""

    memory: RequestMemory
    models: KnownModels
    limits: BodyLimits
    forwarding: HeaderForwarding


class HttpInferRequest:
    """`inference/inference.InferRequest` and `GenerateRequest`."""

    __slots__ = ("_failure", "_forwarding", "_limits", "_memory", "_models", "_request_id", "_route", "_target", "http", "principal")
    door = Door.HTTP

    def __init__(self, http: HttpRequest, route: V2Route, principal: Principal, door: HttpInferDoor) -> None:
        self._memory = door.memory
        self._models = door.models
        self._limits = door.limits
        self._forwarding = door.forwarding
        self._target = http.target
        self.http = http
        self.principal = principal
        self._route = route
        self._failure: ControlPlaneError | None = None
        self._request_id = ""

    @property
    def timeout_s(self) -> float | None:
        return timeout_s_of(self.http)

    def read(self) -> Steps[InferCall]:
        if self._failure is not None:
            raise self._failure
        name, version = self._route.model_name, self._route.model_version
        if self._route.action is Action.GENERATE:
            return _generate_steps(self.http, name, version, self._limits)
        return infer_request_steps(self.http.body, self._json_length(), model_name=name, model_version=version, limits=self._limits)

    def name_seen(self) -> str:
        return self._route.model_name

    def header_id(self) -> str:
        return self.http.request_id

    def aim_at(self, model_name: str, model_version: str) -> None:
        self.http = self.http.with_target(target_for(self.http.target, model_name, model_version))
        self._route = replace(self._route, model_name=model_name, model_version=model_version)

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[HttpAnswer]:
        return server.http.send(self.http, timeout_s=timeout_s, model_name=self._models.name_of(self._route.model_name))

    def stream(self, server: Upstream, *, timeout_s: float) -> Awaitable[HttpAnswer | HttpStream]:
        return server.http.stream(self.http, timeout_s=timeout_s, model_name=self._models.name_of(self._route.model_name))

    def outcome(self, answer: HttpAnswer | HttpStream) -> Outcome:
        if answer.status == 200:
            return Outcome.ANSWERED
        return Outcome.MODEL_NOT_FOUND if answer.status == 404 else Outcome.UPSTREAM_ERROR

    def key(self, scope: CacheScope, named: InferCall, version: str) -> bytes | None:
        if len(self.http.body) > MAX_KEYED_BYTES or not takes_kept_answers(self.http):
            return None
        self._request_id = named.request_id
        forwarded = self._forwarding.matched(self.http.headers)
        memory_key = memory_key_of(self.http, self._target, forwarded)
        repeated = None if memory_key is None else self._memory.get(memory_key)
        if repeated is None:
            repeated = RepeatedRequest(named, _KIND, self._identity(named, forwarded), restore_http)
            if memory_key is not None:
                self._memory.keep(memory_key, repeated, size_bytes=len(self.http.body) + len(self._target) + _REMEMBERED_BYTES)
        return scope.key(_KIND, version.encode(), repeated.identity)

    def _identity(self, call: InferCall, forwarded: bytes) -> bytes:
        body, json_length = self.http.body, self._json_length()
        size = len(body) if json_length is None else int(json_length)
        return identity_of(json_without_id(bytes(body[:size]), call.request_id), body[size:], *filter(None, (forwarded,)))

    def keep(self, answer: HttpAnswer) -> bytes | None:
        return keep_http(answer, request_id=self._request_id)

    def restore(self, kept: bytes, status: CacheStatus) -> HttpAnswer:
        return restore_http(kept, status, request_id=self._request_id)

    def mark(self, answer: HttpAnswer, status: CacheStatus) -> HttpAnswer:
        return mark_http(answer, status)

    def _json_length(self) -> bytes | None:
        return self.http.single_header(b"inference-header-content-length")

    def fail(self, error: ControlPlaneError) -> None:
        """Let `read` find that the body could not be decoded, so that it is recorded as every refusal is."""
        self._failure = error


def takes_kept_answers(http: HttpRequest) -> bool:
    """As far as its head says."""
    return not forbids_kept_answer(http.text_header(b"cache-control"))


def memory_key_of(http: HttpRequest, target: bytes, forwarded: bytes) -> MemoryKey | None:
    """None of a body that is too large to be remembered. Raises InvalidRequest."""
    return (target, http.single_header(b"inference-header-content-length"), forwarded, http.body) if type(http.body) is bytes else None


@asynccontextmanager
async def decode(request: HttpInferRequest, budget: BodyBudget, limits: BodyLimits) -> AsyncIterator[None]:
    """Undo the request's Content-Encoding, in a thread; what it becomes is held of the budget within the `with` block."""
    http, decoded = request.http, Inflated(budget)
    try:
        try:
            encoding = http.single_header(b"content-encoding")
            is_packed = encoding is not None and is_encoded(encoding)
            if is_packed:
                await decoded.read_in_thread(decoded_pieces(http.body, _bound(http, limits)))
            headers = [field for field in http.headers if field[0].lower() != b"content-encoding"]
            request.http = HttpRequest(http.method, http.target, headers, decoded.body if is_packed else http.body)
        except ControlPlaneError as exc:
            request.fail(exc)
        yield
    finally:
        decoded.give_back()


def _bound(http: HttpRequest, limits: BodyLimits) -> InflateBound:
    if is_all_json(http):
        return limits.inflated_json(len(http.body))
    return limits.inflated(len(http.body))


def is_all_json(http: HttpRequest) -> bool:
    """Whether no binary data follows the JSON of an inference."""
    return http.header(b"inference-header-content-length") is None


def _generate_steps(http: HttpRequest, name: str, version: str, limits: BodyLimits) -> Steps[InferCall]:
    limits.check_json_bytes(len(http.body))
    yield from json_object_steps(http.body, limits)
    return InferCall(name, version, "", (), text_bytes=len(http.body))
