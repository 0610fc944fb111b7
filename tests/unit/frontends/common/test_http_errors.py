"""Every error in both forms, Triton's and OpenAI's, with the status of the common table."""

from __future__ import annotations

import json

import pytest

from control_plane.core.errors import (
    ControlPlaneError,
    ErrorCode,
    InvalidRequest,
    LimitExceeded,
    MethodNotAllowed,
    ModelNotFound,
    NotSupported,
    Unauthenticated,
)
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.common.status import STATUS


def error_of(code: ErrorCode) -> ControlPlaneError:
    return type("Other", (ControlPlaneError,), {"code": code})("what was wrong")


@pytest.mark.parametrize("code", ErrorCode)
def test_every_kind_of_error_has_both_forms(code: ErrorCode) -> None:
    error, status = error_of(code), STATUS[code].http
    triton, openai = render_error(error, b"/v2/models/m/infer"), render_error(error, b"/v1/embeddings")

    assert triton.status == openai.status == status
    assert json.loads(triton.body) == {"error": "what was wrong"}
    said = json.loads(openai.body)["error"]
    assert (said["message"], said["param"]) == ("what was wrong", None)
    assert (said["type"] == "server_error") == (status >= 500)
    would_be_sent_again = status in (408, 409, 429) or status >= 500
    assert (b"\r\nx-should-retry: false\r\n" in openai.head) is (would_be_sent_again and not STATUS[code].retryable)


@pytest.mark.parametrize(
    ("error", "kind", "code", "field"),
    [
        pytest.param(InvalidRequest("no", field="input"), "invalid_request_error", None, "input", id="field"),
        pytest.param(InvalidRequest("no"), "invalid_request_error", None, None, id="no-field"),
        pytest.param(ModelNotFound("no"), "invalid_request_error", "model_not_found", None, id="model"),
        pytest.param(Unauthenticated("no"), "authentication_error", "invalid_api_key", None, id="key"),
        pytest.param(LimitExceeded("no"), "rate_limit_error", "rate_limit_exceeded", None, id="limit"),
    ],
)
def test_what_openais_clients_look_at(error: ControlPlaneError, kind: str, code: str | None, field: str | None) -> None:
    assert json.loads(render_error(error, b"/v1/models").body) == {"error": {"message": "no", "type": kind, "param": field, "code": code}}


@pytest.mark.parametrize("target", [b"/v2", b"/v1/models", b""])
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (LimitExceeded("no", retry_after_s=2.5, limits=(("RateLimit-Limit", "1"),)), b"\r\nRetry-After: 3\r\nRateLimit-Limit: 1\r\n"),
        (MethodNotAllowed("no", allowed=("GET", "HEAD")), b"\r\nAllow: GET, HEAD\r\n"),
        (NotSupported("no"), b"\r\nAccept-Encoding: gzip, deflate\r\n"),
        (Unauthenticated("no"), b"\r\nWWW-Authenticate: Bearer\r\n"),
    ],
)
def test_advice_stands_in_the_head_of_both(error: ControlPlaneError, line: bytes, target: bytes) -> None:
    assert line in render_error(error, target).head


@pytest.mark.parametrize("target", [b"/v2", b"/v1/models"])
def test_of_a_defect_the_log_alone_tells_the_text(target: bytes, caplog: pytest.LogCaptureFixture) -> None:
    answer = render_error(KeyError("secret"), target)
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert "secret" in caplog.text
