"""Renders errors over HTTP in the form of the API that was called, Triton's or OpenAI's.

Called by `frontends/http/connection` and `frontends/http/answers/loop`, where the errors of HTTP requests become answers.
The statuses come from the table in `frontends/common/status`.
"""

from __future__ import annotations

import logging

import orjson

from control_plane.core.errors import DEFECT_TEXT, ControlPlaneError, ErrorCode, InvalidRequest, MethodNotAllowed
from control_plane.frontends.common.status import STATUS, advice_of, message_of
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.protocols.kserve.routes import is_openai
from control_plane.protocols.openai import error_answer

_log = logging.getLogger(__name__)

_TRITON_DEFECT = orjson.dumps({"error": DEFECT_TEXT})

_OPENAI_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""OpenAI's error `type` by HTTP status; other statuses below 500 are `invalid_request_error`, the rest
`server_error`."""

_OPENAI_CODES = {
    ErrorCode.UNAUTHENTICATED: "invalid_api_key",
    ErrorCode.LIMIT_EXCEEDED: "rate_limit_exceeded",
    ErrorCode.MODEL_NOT_FOUND: "model_not_found",
}
"""The error `code`s that OpenAI's clients look at; all other errors have none."""


def render_error(error: Exception, target: bytes = b"") -> HttpAnswer:
    """Render the answer to a request for `target` that fails with `error`; Triton's form is `{"error":
    text}`. Anything but a ControlPlaneError is a defect: it is logged, and the caller is not told its text."""
    if not isinstance(error, ControlPlaneError):
        _log.error("a request failed in the gateway; this is a defect", exc_info=error)
        body = error_answer(DEFECT_TEXT, kind="server_error", code=None, field=None) if is_openai(target) else _TRITON_DEFECT
        return make_answer(500, body)
    status, headers = STATUS[error.code].http, advice_of(error)
    if error.code is ErrorCode.NOT_SUPPORTED:  # mostly of a Content-Encoding
        headers.append((b"Accept-Encoding", b"gzip, deflate"))
    if isinstance(error, MethodNotAllowed) and error.allowed:
        headers.append((b"Allow", ", ".join(error.allowed).encode()))
    if not is_openai(target):
        return make_answer(status, orjson.dumps({"error": message_of(error)}), headers=headers)
    if not STATUS[error.code].retryable and (status == 409 or status >= 500):
        headers.append((b"x-should-retry", b"false"))  # OpenAI's clients send requests with such statuses again by themselves
    return make_answer(status, openai_error(error), headers=headers)


def openai_error(error: ControlPlaneError) -> bytes:
    """Render the error's body in OpenAI's form."""
    status = STATUS[error.code].http
    kind = _OPENAI_KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    field = error.field if isinstance(error, InvalidRequest) else None
    return error_answer(message_of(error), kind=kind, code=_OPENAI_CODES.get(error.code), field=field)
