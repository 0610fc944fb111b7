"""One inference request over HTTP, `infer` or `generate`, as `services.inference` takes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace

from control_plane.api.body_budget import BodyBudget
from control_plane.codec.content_encoding import decoded_pieces, is_encoded
from control_plane.codec.http_message import HttpAnswer, HttpRequest
from control_plane.codec.infer_json import infer_request_steps, json_object_steps
from control_plane.codec.steps import Steps
from control_plane.codec.v2_route import V2Route
from control_plane.domain.action import Action
from control_plane.domain.errors import ControlPlaneError, InvalidRequest
from control_plane.domain.inference import Door, InferCall, Outcome
from control_plane.domain.principal import Principal
from control_plane.ports import HttpStream, Upstream

_MAX_TIMEOUT_MS = 24 * 3600 * 1000
_BUDGET_WAIT_S = 10.0
"""For memory for the next piece of a body that is being decoded, while it holds what has been decoded."""


class HttpInferRequest:
    """`services.inference.InferRequest` and `GenerateRequest`."""

    __slots__ = ("_failure", "_route", "http", "principal")
    door = Door.HTTP

    def __init__(self, http: HttpRequest, route: V2Route, principal: Principal) -> None:
        self.http = http
        self.principal = principal
        self._route = route
        self._failure: ControlPlaneError | None = None

    @property
    def timeout_s(self) -> float | None:
        value = self.http.single_header(b"tidegate-timeout-ms")
        if value is None:
            return None
        if not value.isdigit() or len(value) > len(str(_MAX_TIMEOUT_MS)) or not 0 < int(value) <= _MAX_TIMEOUT_MS:
            raise InvalidRequest(f"tidegate-timeout-ms must be a whole number of milliseconds up to a day, got {value.decode('latin-1')!r}")
        return int(value) / 1000

    def read(self) -> Steps[InferCall]:
        if self._failure is not None:
            raise self._failure
        name, version = self._route.model_name, self._route.model_version
        if self._route.action is Action.GENERATE:
            return _generate_steps(self.http, name, version)
        header_length = self.http.single_header(b"inference-header-content-length")
        return infer_request_steps(self.http.body, header_length, model_name=name, model_version=version)

    def aim_at(self, model_name: str, model_version: str) -> None:
        self.http = self.http.with_target(self._route.target_for(self.http.target, model_name, model_version))
        self._route = replace(self._route, model_name=model_name, model_version=model_version)

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[HttpAnswer]:
        return server.http.send(self.http, timeout_s=timeout_s, model_name=self._route.model_name)

    def stream(self, server: Upstream, *, timeout_s: float) -> Awaitable[HttpAnswer | HttpStream]:
        return server.http.stream(self.http, timeout_s=timeout_s, model_name=self._route.model_name)

    def outcome(self, answer: HttpAnswer | HttpStream) -> Outcome:
        if answer.status == 200:
            return Outcome.ANSWERED
        return Outcome.MODEL_NOT_FOUND if answer.status == 404 else Outcome.UPSTREAM_ERROR

    def fail(self, error: ControlPlaneError) -> None:
        """Let `read` find that the body could not be decoded, so that it is recorded as every refusal is."""
        self._failure = error


@asynccontextmanager
async def decode(request: HttpInferRequest, budget: BodyBudget, *, max_bytes: int) -> AsyncIterator[None]:
    """Undo the request's Content-Encoding, in a thread; what it becomes is held of the budget within the `with` block."""
    http, body = request.http, bytearray()
    try:
        try:
            encoding = http.single_header(b"content-encoding")
            pieces = decoded_pieces(http.body, max_bytes=max_bytes) if encoding and is_encoded(encoding) else None
            while pieces is not None and (piece := await asyncio.to_thread(next, pieces, b"")):
                await budget.take(len(piece), _BUDGET_WAIT_S)
                body += piece
            headers = [field for field in http.headers if field[0].lower() != b"content-encoding"]
            request.http = HttpRequest(http.method, http.target, headers, http.body if pieces is None else body)
        except ControlPlaneError as exc:
            request.fail(exc)
        yield
    finally:
        budget.give(len(body))


def _generate_steps(http: HttpRequest, name: str, version: str) -> Steps[InferCall]:
    yield from json_object_steps(http.body)
    return InferCall(name, version, "", (), text_bytes=len(http.body))
