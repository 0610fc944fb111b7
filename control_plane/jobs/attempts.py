"""Form in which a runner hands an attempt at a job to a gateway, and the gateway's answer.

Each is a line of JSON and bytes: the record and its body; what was computed and its answer, head and body, or why it is
to be tried again. Used by `jobs/adapters/gateway_compute` and `frontends/jobs/http`, on the path `target_of`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import orjson

from control_plane.core.errors import InvalidRequest
from control_plane.jobs.domain.job import Job, without_data
from control_plane.jobs.domain.job_text import decode_job, encode_job
from control_plane.jobs.ports import Computed, TryAgain
from control_plane.metering.domain.usage import Usage
from control_plane.protocols.http1 import HttpAnswer

RECORD_BYTES = 256 * 1024
"""Most bytes of a record that is handed over: a job's header fields have 4,096 at most, which JSON may write in six times as many,
and the scopes of few keys as many again."""
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError)  # orjson's own error is a ValueError


def target_of(job: Job) -> str:
    """Return the path on which a gateway computes the job."""
    return f"/v2/jobs/{job.id}/compute"


def envelope_bytes(target: bytes) -> int:
    """Return how many bytes the body of a request may have beside those of a job: for the record, where the path is `target_of`'s."""
    return RECORD_BYTES if target.startswith(b"/v2/jobs/") and target.endswith(b"/compute") else 0


def encode_attempt(job: Job, body: bytes) -> bytes:
    """Encode a job and its body."""
    return encode_job(replace(job, body=without_data(job.body))) + b"\n" + body


def decode_attempt(text: bytes | bytearray) -> tuple[Job, bytes]:
    """Decode what `encode_attempt` returned. Raises InvalidRequest."""
    record, _, body = bytes(text).partition(b"\n")
    try:
        return decode_job(record), body
    except _DAMAGED as exc:
        raise InvalidRequest(f"the body must be a job's record, a line break and the job's body: {exc}") from exc


def encode_outcome(outcome: Computed | TryAgain) -> bytes:
    """Encode what came of an attempt."""
    if isinstance(outcome, TryAgain):
        plain = {
            "again": str(outcome),
            "was_computed": outcome.was_computed,
            "retry_after_s": outcome.retry_after_s,
            "is_crowded": outcome.is_crowded,
        }
        return orjson.dumps(plain) + b"\n"
    answer, usage = outcome.answer, outcome.usage
    plain = {
        "status": answer.status,
        "head_bytes": len(answer.head),
        "model": outcome.model,
        "usage": None if usage is None else asdict(usage),
        "failed_lines": outcome.failed_lines,
        "seconds": outcome.seconds,
    }
    return b"".join((orjson.dumps(plain), b"\n", answer.head, answer.body))


def decode_outcome(text: bytes | bytearray) -> Computed:
    """Decode what `encode_outcome` returned. Raises TryAgain, if that is what it says, or if it says nothing."""
    line, _, rest = bytes(text).partition(b"\n")
    try:
        plain: dict[str, Any] = orjson.loads(line)
        again = plain.pop("again", None)
        if again is None:
            status, head_bytes, usage = plain.pop("status"), plain.pop("head_bytes"), plain.pop("usage")
            answer = HttpAnswer(status, rest[:head_bytes], rest[head_bytes:])
            return Computed(answer, usage=None if usage is None else Usage(**usage), **plain)
        refused = TryAgain(again, **plain)
    except _DAMAGED as exc:
        raise TryAgain(f"the gateway's answer cannot be read: {exc}", was_computed=True) from exc
    raise refused
