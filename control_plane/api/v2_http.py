"""KServe v2 over HTTP, as unmodified Triton clients and perf_analyzer speak it."""

from __future__ import annotations

import logging

import orjson

from control_plane.api.status import STATUS, message_of
from control_plane.codec.content_encoding import decode_body
from control_plane.codec.http_message import HttpAnswer, HttpRequest, make_answer
from control_plane.codec.infer_json import parse_json_object, read_infer_request
from control_plane.codec.v2_route import Action, V2Route, read_route
from control_plane.domain.errors import ControlPlaneError, ErrorCode, InvalidRequest
from control_plane.domain.inference import Door, InferCall, Outcome
from control_plane.ports import Upstream
from control_plane.services.inference import InferenceService
from control_plane.services.servers import Servers

_log = logging.getLogger(__name__)

_MAX_TIMEOUT_MS = 24 * 3600 * 1000
_EMPTY_OK = make_answer(200, content_type=b"text/plain")


class HttpInferRequest:
    """One inference request over HTTP: `services.inference.InferRequest`."""

    __slots__ = ("_http", "_max_body_bytes", "_route")
    door = Door.HTTP

    def __init__(self, http: HttpRequest, route: V2Route, *, max_body_bytes: int) -> None:
        self._http = http
        self._route = route
        self._max_body_bytes = max_body_bytes

    @property
    def timeout_s(self) -> float | None:
        return _timeout_s(self._http)

    def read(self) -> InferCall:
        encoding = self._http.single_header(b"content-encoding")
        if encoding is not None:
            self._decode(encoding)
        header_length = self._http.single_header(b"inference-header-content-length")
        return read_infer_request(
            self._http.body, header_length, model_name=self._route.model_name, model_version=self._route.model_version
        )

    async def send(self, server: Upstream, *, timeout_s: float) -> HttpAnswer:
        return await server.http.send(self._http, timeout_s=timeout_s)

    def outcome(self, answer: HttpAnswer) -> Outcome:
        if answer.status == 200:
            return Outcome.ANSWERED
        return Outcome.MODEL_NOT_FOUND if answer.status == 404 else Outcome.UPSTREAM_ERROR

    def _decode(self, encoding: bytes) -> None:
        body = decode_body(self._http.body, encoding, max_bytes=self._max_body_bytes)
        headers = [field for field in self._http.headers if field[0].lower() != b"content-encoding"]
        self._http = HttpRequest(self._http.method, self._http.target, headers, body)


class V2Http:
    """The application behind the HTTP data port."""

    def __init__(self, *, inference: InferenceService, servers: Servers, max_body_bytes: int, read_timeout_s: float) -> None:
        self._inference = inference
        self._servers = servers
        self._max_body_bytes = max_body_bytes
        self._read_timeout_s = read_timeout_s

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer one request; errors are answers too."""
        try:
            route = read_route(request.method, request.target)
            if route.action is Action.INFER:
                return await self._inference.infer(HttpInferRequest(request, route, max_body_bytes=self._max_body_bytes))
            if route.action is Action.LIVE:
                return _EMPTY_OK
            if request.body and request.method == b"POST":  # a repository index; nested deep enough it overflows Triton's stack
                parse_json_object(request.body)
            return await self._servers.pick().http.send(request, timeout_s=self._read_timeout_s)
        except ControlPlaneError as exc:
            return render_error(exc)
        except Exception:
            _log.exception("a request failed in the gateway; this is a defect")
            return make_answer(500, b'{"error":"internal error of the gateway; its log has the details"}')


def render_error(error: ControlPlaneError) -> HttpAnswer:
    """Triton's form of an error: `{"error": text}`."""
    retry_after = [(b"Retry-After", b"1")] if error.code is ErrorCode.UPSTREAM_UNAVAILABLE else None
    return make_answer(STATUS[error.code].http, orjson.dumps({"error": message_of(error)}), headers=retry_after)


def _timeout_s(request: HttpRequest) -> float | None:
    value = request.single_header(b"tidegate-timeout-ms")
    if value is None:
        return None
    if not value.isdigit() or len(value) > len(str(_MAX_TIMEOUT_MS)) or not 0 < int(value) <= _MAX_TIMEOUT_MS:
        raise InvalidRequest(f"tidegate-timeout-ms must be a whole number of milliseconds up to a day, got {value.decode('latin-1')!r}")
    return int(value) / 1000
