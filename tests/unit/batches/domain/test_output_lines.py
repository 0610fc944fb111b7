"""Output of batches: lines, their counts, and how a batch has ended."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from control_plane.batches.domain.batch import Batch, Chunk, Chunks
from control_plane.batches.domain.input_lines import Line
from control_plane.batches.domain.output_lines import (
    ChunkEnd,
    answered_line,
    can_be_without_a_job,
    chunk_end,
    ended,
    never_made,
    split_result,
    unanswered_lines,
)
from control_plane.jobs.domain.job import Blob, JobState, Result
from tests.fakes.jobs import job, job_id

BATCH = Batch("batch_1", "team", "k", (), "file-1", "m", Chunks([Chunk(3, 0, 9), Chunk(2, 9, 15)]), None, 0.0, 10.0)
RESULT = Result(Blob("b", 1, ""), 200, 0, failed_lines=1)


def test_an_answered_line_is_openais() -> None:
    found = orjson.loads(answered_line(job_id(1), 2, 'a"b', 200, b'{"object":"list"}'))

    request = f"batch_req_{'0' * 31}1002"
    response = {"status_code": 200, "request_id": request, "body": {"object": "list"}}
    assert found == {"id": request, "custom_id": 'a"b', "response": response, "error": None}


def test_a_result_is_split_where_the_errors_begin() -> None:
    fine, wrong = (answered_line(job_id(1), at, str(at), status, b"{}") for at, status in ((0, 200), (1, 400)))
    assert split_result(fine + fine + wrong, 2) == (fine + fine, wrong)
    assert split_result(wrong, 0) == (b"", wrong)


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        pytest.param(JobState.CANCELLED, "batch_cancelled", "cancelled", id="cancelled"),
        pytest.param(JobState.EXPIRED, "batch_expired", "window expired", id="expired"),
        pytest.param(JobState.DEAD, "server_error", "it broke", id="dead"),
    ],
)
def test_lines_without_an_answer_say_why(state: JobState, code: str, said: str) -> None:
    text = unanswered_lines(job_id(1), [Line("a", b""), Line("b", b"")], state, "it broke")
    found = [orjson.loads(each) for each in text.splitlines()]
    assert [(each["custom_id"], each["response"], each["error"]["code"]) for each in found] == [("a", None, code), ("b", None, code)]
    assert said in found[0]["error"]["message"]
    assert len({each["id"] for each in found}) == 2


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        pytest.param({}, None, id="queued"),
        pytest.param({"state": JobState.SUCCEEDED, "result": RESULT}, ChunkEnd(JobState.SUCCEEDED, 2, 1, 1), id="answered"),
        pytest.param({"state": JobState.DEAD}, ChunkEnd(JobState.DEAD, 0, 3), id="dead"),
        pytest.param({"state": JobState.CANCELLED}, ChunkEnd(JobState.CANCELLED), id="cancelled"),
    ],
)
def test_the_end_of_a_chunk(fields: dict[str, Any], end: ChunkEnd | None) -> None:
    assert chunk_end(job(**fields), 3) == end


@pytest.mark.parametrize(
    ("ends", "state", "counts", "files"),
    [
        pytest.param([ChunkEnd(JobState.SUCCEEDED, 3), ChunkEnd(JobState.SUCCEEDED, 2)], "completed", (5, 0), (True, False), id="all"),
        pytest.param([ChunkEnd(JobState.SUCCEEDED, 3), ChunkEnd(JobState.DEAD, 0, 2)], "completed", (3, 2), (True, True), id="dead"),
        pytest.param([ChunkEnd(JobState.SUCCEEDED, 3), never_made(is_cancelled=True)], "cancelled", (3, 0), (True, True), id="cut"),
        pytest.param([never_made(is_cancelled=False)] * 2, "expired", (0, 0), (False, True), id="expired"),
    ],
)
def test_the_end_of_a_batch(ends: list[ChunkEnd], state: str, counts: tuple[int, int], files: tuple[bool, bool]) -> None:
    found = ended(BATCH, ends, now_s=5.0)
    assert (found.state, (found.completed, found.failed), (found.has_output, found.has_errors)) == (state, counts, files)


def test_only_what_was_never_computed_can_be_without_a_job() -> None:
    assert [state for state in JobState if can_be_without_a_job(ChunkEnd(state))] == [JobState.CANCELLED, JobState.EXPIRED]
