from __future__ import annotations

import asyncio
from http import HTTPStatus

import grpc
import pytest

from control_plane.core.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    ErrorCode,
    InvalidRequest,
    LimitExceeded,
    Overloaded,
    StoreUnavailable,
    Unauthenticated,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.core.infer_call import Frontend
from control_plane.frontends.common.status import STATUS, advice_of, client_status_of, message_of
from control_plane.metering.domain.usage import ClientStatus
from control_plane.triton.adapters.control import STATUS_ERRORS


@pytest.mark.parametrize(
    ("frontend", "error", "told"),
    [
        pytest.param(Frontend.HTTP, DeadlineExceeded("late"), ClientStatus(504, "late"), id="http"),
        pytest.param(Frontend.GRPC, DeadlineExceeded("late"), ClientStatus(4, "late"), id="grpc"),
        pytest.param(Frontend.GRPC_STREAM, InvalidRequest("no"), ClientStatus(3, "no"), id="stream"),
        pytest.param(Frontend.HTTP, asyncio.CancelledError(), ClientStatus(None), id="the caller has left"),
        pytest.param(Frontend.HTTP, KeyError("secret"), ClientStatus(500, "internal error of the gateway"), id="a defect"),
        pytest.param(Frontend.GRPC, KeyError("secret"), ClientStatus(13, "internal error of the gateway"), id="a defect, grpc"),
    ],
)
def test_what_a_caller_is_told(frontend: Frontend, error: BaseException, told: ClientStatus) -> None:
    assert client_status_of(frontend, error) == told


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_is_mapped_to_an_error_status(code: ErrorCode) -> None:
    status = STATUS[code]
    assert HTTPStatus(status.http) >= 400
    assert status.grpc is not grpc.StatusCode.OK
    assert isinstance(status.retryable, bool)


def test_nothing_else_is_mapped() -> None:
    assert STATUS.keys() == set(ErrorCode)


@pytest.mark.parametrize("code", ErrorCode)
def test_only_what_may_pass_by_itself_is_retryable(code: ErrorCode) -> None:
    assert STATUS[code].retryable is (STATUS[code].http in (408, 429, 503, 504))


@pytest.mark.parametrize("status", [status for status in grpc.StatusCode if status is not grpc.StatusCode.OK])
def test_every_status_of_a_control_call_has_an_error(status: grpc.StatusCode) -> None:
    expected: type[ControlPlaneError] = UpstreamFailed
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        expected = UpstreamUnavailable
    elif status is grpc.StatusCode.DEADLINE_EXCEEDED:
        expected = DeadlineExceeded
    assert STATUS_ERRORS[status] is expected


def test_ok_is_no_error() -> None:
    assert grpc.StatusCode.OK not in STATUS_ERRORS


def test_where_a_store_is_stands_in_the_log_and_not_in_an_answer() -> None:
    away = StoreUnavailable("redis://redis.internal:6379/0: refused", shown="a store cannot be reached")
    assert (message_of(away), str(away)) == ("a store cannot be reached", "redis://redis.internal:6379/0: refused")
    assert message_of(StoreUnavailable("the spool of jobs: full")) == "the spool of jobs: full"


def test_a_message_is_cut_to_what_grpc_metadata_can_hold() -> None:
    assert message_of(InvalidRequest("short")) == "short"
    text = message_of(InvalidRequest("\U0001f600" * 10_000))
    assert text.endswith(" ...")
    assert len(text.encode()) * 3 < 8192  # gRPC percent-encodes each byte


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        pytest.param(LimitExceeded("x", retry_after_s=0.2), {"Retry-After": "1"}, id="never-at-once"),
        pytest.param(
            LimitExceeded("x", retry_after_s=2.1, limits=(("RateLimit-Limit", "5"),)),
            {"Retry-After": "3", "RateLimit-Limit": "5"},
            id="rounded-up-with-what-is-left",
        ),
        pytest.param(Overloaded("x"), {"Retry-After": "1"}, id="overloaded"),
        pytest.param(Overloaded("x", retry_after_s=7.0), {"Retry-After": "7"}, id="overloaded-for-long"),
        pytest.param(UpstreamUnavailable("x"), {"Retry-After": "1"}, id="no-triton"),
        pytest.param(Unauthenticated("x"), {"WWW-Authenticate": "Bearer"}, id="who-are-you"),
        pytest.param(InvalidRequest("x"), {}, id="nothing-to-say"),
    ],
)
def test_advice(error: ControlPlaneError, fields: dict[str, str]) -> None:
    assert {name.decode(): value.decode() for name, value in advice_of(error)} == fields
