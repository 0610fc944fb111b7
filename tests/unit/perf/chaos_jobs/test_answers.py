"""What the audit of jobs makes of an answer: each kind of wrong is seen, and told apart from what is right."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from control_plane.jobs.domain.job import Job, JobState, carried
from control_plane.jobs.domain.job import Result as JobResult
from perf.chaos_jobs.answers import judge_jobs
from perf.chaos_jobs.callers import Accepted, Callers
from perf.chaos_jobs.findings import Findings
from perf.chaos_jobs.http import Reply
from perf.chaos_jobs.work import EMBEDDING, Request, Wanted
from tests.fakes.jobs import job, job_id

RESULT = JobResult(carried(job_id(1), "result-1", b"answer"), 200, 0)
DONE = job(1, state=JobState.SUCCEEDED, result=RESULT, idempotency_key="k", tenant="one")


def vector(*numbers: float) -> bytes:
    return json.dumps({"outputs": [{"name": "EMBEDDING", "data": numbers}]}).encode()


class FakeCallers:
    """`Callers` of whose jobs each has the same result, and each request the same synchronous answer."""

    def __init__(self, accepted: list[Accepted], result: bytes, synchronous: bytes) -> None:
        self.accepted = accepted
        self._result, self._synchronous = result, synchronous

    async def ask(self, tenant: str, method: str, path: str, fields: dict[str, str] | None = None, *, body: bytes = b"") -> Reply:
        return Reply(200, {}, self._result if path.endswith("/result") else self._synchronous)


def accepted(number: int = 1, *, model: str = "m", cancel_after_s: float | None = None, at_s: float = 0.0, **fields: Any) -> Accepted:
    return Accepted(Wanted("JSON", "one", Request(model, b"{}"), "k", cancel_after_s), job_id(number), at_s, **fields)


async def judged(known: tuple[Job, ...], *accepted: Accepted, result: bytes = b"answer", synchronous: bytes = b"answer") -> dict[str, int]:
    findings = Findings()
    callers = cast("Callers", FakeCallers(list(accepted), result, synchronous))
    await judge_jobs(callers, known, findings, saved_s=100.0)
    return dict(findings.counts)


CANCELLED, DEAD = job(1, state=JobState.CANCELLED), job(1, state=JobState.DEAD)
TWIN = job(2, state=JobState.SUCCEEDED, idempotency_key="k", tenant="one")
TOLD_CANCELLED = accepted(cancel_after_s=1.0, state="cancelled")
FORGOTTEN_CANCELLED = accepted(cancel_after_s=1.0, state="cancelled", cancelled_s=101.0)
CLOSE = {"result": vector(0.1, 0.2), "synchronous": vector(0.1, 0.2 + 1e-8)}
FAR = {"result": vector(0.1, 0.2), "synchronous": vector(0.1, 0.21)}


@pytest.mark.parametrize(
    ("each", "known", "answers", "found"),
    [
        pytest.param(accepted(), (DONE,), {}, {}, id="right"),
        pytest.param(accepted(), (DONE,), {"result": b"another"}, {"wrong": 1}, id="another answer"),
        pytest.param(accepted(), (), {}, {"lost": 1}, id="no record"),
        pytest.param(accepted(at_s=101.0), (), {}, {"forgotten": 1}, id="accepted after what the store was set back to"),
        pytest.param(accepted(), (DEAD,), {}, {"unanswered": 1}, id="dead"),
        pytest.param(accepted(), (job(1),), {}, {"unanswered": 1}, id="never ended"),
        pytest.param(accepted(), (CANCELLED,), {}, {"unanswered": 1}, id="cancelled by nobody"),
        pytest.param(TOLD_CANCELLED, (CANCELLED,), {}, {}, id="cancelled"),
        pytest.param(TOLD_CANCELLED, (DONE,), {}, {"changed": 1}, id="cancelled and computed all the same"),
        pytest.param(FORGOTTEN_CANCELLED, (DEAD,), {}, {}, id="cancelled after what the store was set back to"),
        pytest.param(accepted(seen=(200, b"first")), (DONE,), {}, {"changed": 1}, id="an answer that changed"),
        pytest.param(accepted(), (DONE, TWIN), {}, {"doubled": 1}, id="two of a key"),
        pytest.param(accepted(model=EMBEDDING), (DONE,), CLOSE, {"rounded": 1}, id="rounded"),
        pytest.param(accepted(model=EMBEDDING), (DONE,), FAR, {"wrong": 1}, id="another vector"),
    ],
)
async def test_what_is_found(each: Accepted, known: tuple[Job, ...], answers: dict[str, bytes], found: dict[str, int]) -> None:
    assert await judged(known, each, **answers) == found


async def test_one_job_for_two_keys_is_seen() -> None:
    assert await judged((DONE,), accepted(), accepted()) == {"doubled": 1}
