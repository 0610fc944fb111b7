from __future__ import annotations

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.jobs.attempts import decode_attempt, decode_outcome, encode_attempt, encode_outcome
from control_plane.jobs.domain.job import carried
from control_plane.jobs.ports import Computed, TryAgain
from control_plane.metering.domain.usage import Usage
from control_plane.protocols.http1 import HttpAnswer, make_answer
from tests.fakes.jobs import job, job_id

BODY = b'{"a":1}\n\0\xff\n'


def test_a_job_and_its_body_come_back_without_the_bytes_that_the_record_carried() -> None:
    given = job(1, body=carried(job_id(1), "body", BODY), headers=(("x", "\n名"),), attempts=2)
    found, body = decode_attempt(encode_attempt(given, BODY))
    assert body == BODY
    assert (found.body.sha256, found.body.data) == (given.body.sha256, b"")
    assert (found.id, found.headers, found.attempts, found.scopes) == (given.id, given.headers, 2, given.scopes)


@pytest.mark.parametrize("text", [b"", b"{}\n", b"[]\n", b"\xff\nbody", b'{"id":"job-1"}\nbody', b"null", b'"text"'])
def test_what_is_no_attempt_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_attempt(text)


@pytest.mark.parametrize(
    "computed",
    [
        Computed(make_answer(200, BODY), "m", Usage(requests=1, rows=2, compute_units=0.5), seconds=0.25),
        Computed(make_answer(400, b""), "", None, failed_lines=3),
    ],
)
def test_what_was_computed_comes_back(computed: Computed) -> None:
    found = decode_outcome(encode_outcome(computed))
    assert _of(found.answer) == _of(computed.answer)
    assert (found.model, found.usage, found.failed_lines, found.seconds) == (
        computed.model,
        computed.usage,
        computed.failed_lines,
        computed.seconds,
    )


def test_what_is_to_be_tried_again_comes_back_as_that() -> None:
    with pytest.raises(TryAgain) as again:
        decode_outcome(encode_outcome(TryAgain("busy", was_computed=False, retry_after_s=7.0, is_crowded=True)))
    found = again.value
    assert (str(found), found.was_computed, found.retry_after_s, found.is_crowded) == ("busy", False, 7.0, True)


@pytest.mark.parametrize(
    "text", [b"", b"{}\n", b'{"again":"a"}\n', b"<html>", b'{"status":200,"head_bytes":0,"usage":{"no":1},"model":""}\n']
)
def test_an_answer_that_cannot_be_read_counts_as_an_attempt(text: bytes) -> None:
    with pytest.raises(TryAgain) as again:
        decode_outcome(text)
    assert again.value.was_computed


def _of(answer: HttpAnswer) -> tuple[int, bytes, bytes]:
    return answer.status, bytes(answer.head), bytes(answer.body)
