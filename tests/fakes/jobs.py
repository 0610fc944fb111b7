"""Records of jobs for tests, and the outside of a runner: what computes, and who is told of usage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from control_plane.core.infer_call import Outcome
from control_plane.jobs.domain.job import Blob, Job
from control_plane.jobs.ports import Bounds, Computed, JobTotals
from control_plane.metering.domain.usage import Usage, UsageBatch
from control_plane.protocols.http1 import HttpAnswer, make_answer

PLENTY = JobTotals(1000, 1 << 30)
ROOMY = Bounds(PLENTY, PLENTY)


def job_id(number: int) -> str:
    return f"job-{number:032x}"


def job(number: int = 1, **fields: Any) -> Job:
    """Return a queued job that was submitted at time 0 and has 1000 s."""
    plain = Job(
        id=job_id(number),
        tenant="team",
        key_id="k",
        scopes=("infer:*",),
        model="m",
        target="/v2/models/m/infer",
        headers=(("content-type", "application/json"),),
        body=Blob(f"{job_id(number)}/body", 3, "0" * 64),
        submitted_s=0.0,
        due_s=100.0,
        deadline_s=1000.0,
    )
    return replace(plain, **fields)


def echo(job: Job, body: bytes) -> HttpAnswer:
    return make_answer(200, body)


@dataclass
class FakeCompute:
    """`jobs/ports.Compute` that answers by a function, which may raise."""

    answer: Callable[[Job, bytes], HttpAnswer] = echo
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    begun: list[str] = field(default_factory=list)
    hot: set[str] = field(default_factory=set)
    under_way: int = 0

    def __post_init__(self) -> None:
        self.may_answer.set()

    @asynccontextmanager
    async def room_for(self, size_bytes: int) -> AsyncIterator[None]:
        yield

    async def compute(self, job: Job, body: bytes) -> Computed:
        self.begun.append(job.id)
        self.under_way += 1
        try:
            await self.may_answer.wait()
        finally:
            self.under_way -= 1
        answer = self.answer(job, body)
        counted = Usage(requests=1, rows=1) if answer.status == 200 else Usage(failed=1)
        return Computed(answer, job.model, counted, seconds=0.001)

    def is_hot(self, model: str) -> bool:
        return model in self.hot


@dataclass
class FakeUsage:
    """`jobs/ports.UsageSums` that takes each batch once."""

    batches: dict[str, UsageBatch] = field(default_factory=dict)

    async def add_all(self, batches: Sequence[UsageBatch]) -> None:
        for batch in batches:
            assert self.batches.setdefault(batch.id, batch) == batch
        await asyncio.sleep(0)

    def requests(self, outcome: Outcome = Outcome.ANSWERED) -> int:
        return sum(usage.requests for batch in self.batches.values() for _, usage in batch.sums)
