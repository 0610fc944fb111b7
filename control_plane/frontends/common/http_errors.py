"""Errors over HTTP in the form of the protocol that was asked: Triton's or OpenAI's. Their statuses are `frontends/common/status`'s."""

from __future__ import annotations

import orjson

from control_plane.core.errors import ControlPlaneError, ErrorCode, InvalidRequest, MethodNotAllowed
from control_plane.embeddings.domain.openai_request import error_answer
from control_plane.frontends.common.status import STATUS, advice_of, message_of
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.protocols.kserve.routes import is_openai

_OPENAI_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""By status; others below 500 are `invalid_request_error`, the rest `server_error`."""

_OPENAI_CODES = {
    ErrorCode.UNAUTHENTICATED: "invalid_api_key",
    ErrorCode.LIMIT_EXCEEDED: "rate_limit_exceeded",
    ErrorCode.MODEL_NOT_FOUND: "model_not_found",
}
"""Those that OpenAI's clients look at."""


def render_error(error: ControlPlaneError, target: bytes = b"") -> HttpAnswer:
    """The answer to a request for `target` that ends with `error`; Triton's form is `{"error": text}`."""
    status, headers = STATUS[error.code].http, advice_of(error)
    if error.code is ErrorCode.NOT_SUPPORTED:  # over HTTP only a Content-Encoding can be that
        headers.append((b"Accept-Encoding", b"gzip, deflate"))
    if isinstance(error, MethodNotAllowed) and error.allowed:
        headers.append((b"Allow", ", ".join(error.allowed).encode()))
    body = openai_error(error) if is_openai(target) else orjson.dumps({"error": message_of(error)})
    return make_answer(status, body, headers=headers)


def openai_error(error: ControlPlaneError) -> bytes:
    """The body that says it to OpenAI's clients."""
    status = STATUS[error.code].http
    kind = _OPENAI_KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    field = error.field if isinstance(error, InvalidRequest) else None
    return error_answer(message_of(error), kind=kind, code=_OPENAI_CODES.get(error.code), field=field)
