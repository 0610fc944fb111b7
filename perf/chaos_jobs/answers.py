"""Holds the answers of jobs and batches against what callers were promised, once all have ended and everything is up again."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from control_plane.jobs.domain.job import Job, JobState
from perf.chaos_jobs.callers import ENDED, Accepted, AcceptedBatch, Callers
from perf.chaos_jobs.findings import Findings
from perf.chaos_jobs.http import Reply
from perf.chaos_jobs.work import EMBEDDING, TENANTS, Request
from perf.load.inference_requests import binary_vector

_AT_ONCE = 16
_OK = 200
_ROUNDED = 1e-6
"""Most by which numbers of one text's embedding differ: what else is in Triton's batch decides over the order of additions,
for synchronous requests as well."""


async def judge_jobs(callers: Callers, known: Sequence[Job], findings: Findings, *, saved_s: float) -> None:
    """Hold each accepted job against its record and its answer; who came after `saved_s` may be forgotten."""
    by_id, references = {job.id: job for job in known}, _References(callers)
    keys = Counter((job.tenant, job.idempotency_key) for job in known if job.idempotency_key)
    ids = Counter(each.id for each in callers.accepted)
    for (tenant, key), count in keys.items():
        if count > 1:
            findings.add("doubled", f"{count} jobs of {tenant} under the key {key}", count - 1)
    for job_id, count in ids.items():
        if count > 1:
            findings.add("doubled", f"two keys were answered with {job_id}", count - 1)

    async def judge(each: Accepted) -> None:
        job = by_id.get(each.id)
        if job is None:
            is_newer = each.at_s > saved_s
            findings.add("forgotten" if is_newer else "lost", f"{each.wanted.kind} {each.id}")
        elif each.cancelled_s <= saved_s:  # of a later cancellation nobody knows
            await _judge(callers, references, each, job, findings)

    await _few_at_a_time(judge(each) for each in callers.accepted)


async def _judge(callers: Callers, references: _References, each: Accepted, job: Job, findings: Findings) -> None:
    told = f"{each.wanted.kind} {each.id} is {job.state} after {job.attempts} attempts ({job.error})"
    if each.state in ENDED and each.state != job.state:
        findings.add("changed", f"{told}, and was said to be {each.state}")
    if job.result is None:
        if job.state is not JobState.CANCELLED or each.wanted.cancel_after_s is None:
            findings.add("unanswered", told)
        return
    answer = await callers.ask(each.wanted.tenant, "GET", f"/v2/jobs/{each.id}/result")
    if each.seen is not None and each.seen != (answer.status, answer.body):
        findings.add("changed", f"{told}; its answer was {each.seen[0]} {each.seen[1][:80]!r}, is {answer.status} {answer.body[:80]!r}")
    wanted = await references.of(each.wanted.request)
    if (answer.status, answer.body) != (wanted.status, wanted.body):
        if each.wanted.request.model == EMBEDDING and _are_close(_vector(answer), _vector(wanted)):
            findings.counts["rounded"] += 1
            return
        text = f"{answer.status} {answer.body[:120]!r}, the synchronous answer {wanted.status} {wanted.body[:120]!r}"
        findings.add("wrong", f"{told}: {text}")


async def judge_batches(callers: Callers, findings: Findings) -> None:
    """Hold each line of the accepted batches against the synchronous answer."""
    references = _References(callers)
    for batch in callers.batches:
        if batch.view.get("status") != "completed":
            findings.add("unanswered", f"{batch.id}: {batch.view}", len(batch.lines))
            continue
        answers = [json.loads(line) for line in await _files_of(callers, batch)]
        found = Counter(each["custom_id"] for each in answers)
        calls = {plain["custom_id"]: plain["body"] for plain in map(json.loads, batch.lines)}
        for custom_id in calls:
            if not found[custom_id]:
                findings.add("lost", f"{custom_id} of {batch.id}")
        findings.counts["doubled"] += sum(count - 1 for count in found.values())
        counts = batch.view["request_counts"]
        if counts != {"total": len(calls), "completed": len(calls) - 1, "failed": 1}:
            findings.add("unanswered", f"{batch.id} says {counts}", abs(len(calls) - 1 - counts["completed"]) + abs(1 - counts["failed"]))
        for each in answers:
            if each["response"] is None:
                findings.add("unanswered", f"{each['custom_id']} of {batch.id}: {each['error']}")
                continue
            wanted = await references.of_line(calls[each["custom_id"]])
            status, body = each["response"]["status_code"], each["response"]["body"]
            if (status, body) == (wanted.status, wanted.json):
                continue
            if status == wanted.status == _OK and _are_close(_embedding(body), _embedding(wanted.json)):
                findings.counts["rounded"] += 1
            else:
                findings.add("wrong", f"{each['custom_id']} of {batch.id}: {status} {str(body)[:150]}, wanted {wanted.body[:150]!r}")


async def _files_of(callers: Callers, batch: AcceptedBatch) -> list[str]:
    lines: list[str] = []
    for name in ("output_file_id", "error_file_id"):
        if file_id := batch.view[name]:
            content = await callers.ask(batch.tenant, "GET", f"/v1/files/{file_id}/content")
            lines += content.body.decode().splitlines()
    return lines


class _References:
    """Synchronous answers, each asked for once."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._known: dict[Request | bytes, Reply] = {}

    async def of(self, request: Request) -> Reply:
        path = f"/v2/models/{request.model}/infer"
        return await self._once(request, path, request.body, dict(request.fields))

    async def of_line(self, call: dict[str, Any]) -> Reply:
        body = json.dumps(call).encode()
        return await self._once(body, "/v1/embeddings", body, {"Content-Type": "application/json"})

    async def _once(self, key: Request | bytes, path: str, body: bytes, fields: dict[str, str]) -> Reply:
        if key not in self._known:
            self._known[key] = await self._callers.ask(TENANTS[0], "POST", path, fields, body=body)
        return self._known[key]


async def _few_at_a_time(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    left = iter(works)

    async def work() -> None:
        for each in left:
            await each

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(work())


def _vector(answer: Reply) -> NDArray[np.float32]:
    if "inference-header-content-length" in answer.fields:
        return binary_vector(answer.body)
    return np.asarray(answer.json["outputs"][0]["data"], dtype=np.float32)


def _embedding(body: Any) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(body["data"][0]["embedding"]), dtype=np.float32)


def _are_close(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    return one.shape == other.shape and bool(np.abs(one - other).max() <= _ROUNDED)
