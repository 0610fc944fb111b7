from __future__ import annotations

import pytest

from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import message_answer, status_answer
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.regions.domain.verdict import RegionVerdict, verdict_of


@pytest.mark.parametrize(
    ("http", "grpc", "verdict"),
    [
        pytest.param(401, 16, RegionVerdict.UNAUTHENTICATED, id="its key is not valid there"),
        pytest.param(403, 7, RegionVerdict.DENIED, id="it may not call the model"),
        pytest.param(404, 5, RegionVerdict.MODEL_MISSING, id="no such model"),
        pytest.param(429, 8, RegionVerdict.LIMITED, id="its tenant's limits"),
        pytest.param(503, 14, RegionVerdict.FULL, id="no room"),
        pytest.param(504, 4, RegionVerdict.LOST, id="its time is over"),
        pytest.param(400, 3, RegionVerdict.INVALID, id="it is wrong there"),
        pytest.param(501, 12, RegionVerdict.INVALID, id="it is not supported there"),
        pytest.param(422, 9, RegionVerdict.QUARANTINED, id="processes have died of it"),
        pytest.param(502, 13, RegionVerdict.FAILED, id="a server was lost with it"),
        pytest.param(500, 2, RegionVerdict.FAILED, id="a defect"),
    ],
)
def test_both_protocols_say_the_same(http: int, grpc: int, verdict: RegionVerdict) -> None:
    assert verdict_of(HttpAnswer(http, b"", b"")) is verdict
    assert verdict_of(status_answer(grpc, "text")) is verdict


@pytest.mark.parametrize("status", [301, 302, 307, 308, 413, 421])
def test_what_a_proxy_says_in_its_place_is_no_failure_of_the_model(status: int) -> None:
    assert verdict_of(HttpAnswer(status, b"", b"")) is RegionVerdict.INVALID


def test_a_success_is_the_callers_answer() -> None:
    assert verdict_of(make_answer(200)) is RegionVerdict.ANSWERED
    assert verdict_of(make_answer(200, content_type=b"application/octet-stream")) is RegionVerdict.ANSWERED
    assert verdict_of(message_answer(b"")) is RegionVerdict.ANSWERED


def test_a_page_in_the_place_of_a_region_is_no_answer() -> None:
    assert verdict_of(make_answer(200, b"<html>", content_type=b"text/html; charset=utf-8")) is RegionVerdict.FAILED
    assert verdict_of(HttpAnswer(200, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"")) is RegionVerdict.FAILED


@pytest.mark.parametrize(
    ("loss", "verdict"),
    [
        (SendFailure.NOT_SENT, RegionVerdict.UNREACHABLE),
        (SendFailure.CONNECTION_LOST, RegionVerdict.LOST),
        (SendFailure.TIMED_OUT, RegionVerdict.LOST),
    ],
)
def test_a_call_that_got_no_answer_was_not_sent_or_is_lost(loss: SendFailure, verdict: RegionVerdict) -> None:
    assert verdict_of(status_answer(14, "text", loss=loss)) is verdict


def test_what_is_no_whole_answer_failed() -> None:
    assert verdict_of(None) is RegionVerdict.FAILED
