"""Writes the lines of a batch's output and error files, and tells how far a batch is; pure.

The result of a chunk's job holds its answers: first the lines for the output file, then those for the error file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

from control_plane.batches.domain.batch import Batch, BatchState, Ended
from control_plane.batches.domain.input_lines import Line
from control_plane.jobs.domain.job import Job, JobState

_WHY_NOT = {
    JobState.CANCELLED: ("batch_cancelled", "This request was not executed since the batch was cancelled."),
    JobState.EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
    JobState.DEAD: ("server_error", "Each attempt to execute this request failed"),
}
_NEVER_MADE = {True: JobState.CANCELLED, False: JobState.EXPIRED}
"""What becomes of a chunk that has no job, by whether the batch was cancelled."""


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """End of a chunk, with the numbers of its lines that were answered with success or an error."""

    state: JobState
    completed: int = 0
    failed: int = 0
    size_bytes: int = 0
    """Size of its answers."""


def answered_line(job_id: str, number: int, custom_id: str, status: int, body: bytes) -> bytes:
    """Write the line of a request that was computed or refused; `body` is the JSON that its caller would have got."""
    request_id = orjson.dumps(f"batch_req_{job_id.removeprefix('job-')}{number:03d}")
    parts = (request_id, orjson.dumps(custom_id), status, request_id, body)
    return b'{"id":%b,"custom_id":%b,"response":{"status_code":%d,"request_id":%b,"body":%b},"error":null}\n' % parts


def unanswered_lines(job_id: str, lines: Sequence[Line], state: JobState, error: str = "") -> bytes:
    """Write the lines of a chunk whose job has ended without a result."""
    code, message = _WHY_NOT[state]
    said = {"code": code, "message": f"{message}: {error}" if error and state is JobState.DEAD else message}
    number = f"batch_req_{job_id.removeprefix('job-')}"
    plain = ({"id": f"{number}{at:03d}", "custom_id": line.custom_id, "response": None, "error": said} for at, line in enumerate(lines))
    return b"".join(orjson.dumps(each) + b"\n" for each in plain)


def chunk_end(job: Job, lines: int) -> ChunkEnd | None:
    """Return how a chunk's job has ended; None while it is open."""
    if job.is_open:
        return None
    if job.result is not None:
        failed = job.result.failed_lines
        return ChunkEnd(job.state, lines - failed, failed, job.result.blob.size_bytes)
    return ChunkEnd(job.state, 0, lines if job.state is JobState.DEAD else 0)


def never_made(*, is_cancelled: bool) -> ChunkEnd:
    """Return the end of a chunk for which no job was made before its batch was cancelled or expired."""
    return ChunkEnd(_NEVER_MADE[is_cancelled])


def can_be_without_a_job(end: ChunkEnd) -> bool:
    """Return whether a chunk can have ended so with no job that says so."""
    return end.state in _NEVER_MADE.values()


def split_result(body: bytes, ok_lines: int) -> tuple[bytes, bytes]:
    """Split a chunk's result into the lines for the output file and those for the error file."""
    at = 0
    for _ in range(ok_lines):
        at = body.index(b"\n", at) + 1
    return body[:at], body[at:]


def ended(batch: Batch, ends: Iterable[ChunkEnd], *, now_s: float) -> Ended:
    """Return how a batch has ended, all of whose chunks have."""
    known = list(ends)
    states = {end.state for end in known}
    state = next((BatchState(each) for each in (JobState.CANCELLED, JobState.EXPIRED) if each in states), BatchState.COMPLETED)
    completed, failed = sum(end.completed for end in known), sum(end.failed for end in known)
    return Ended(state, now_s, completed, failed, has_output=completed > 0, has_errors=completed < batch.lines)
