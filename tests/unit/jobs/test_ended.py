"""Jobs that have ended are told, however they did, and what goes on is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from control_plane.jobs.domain.job import Job, JobState
from control_plane.jobs.domain.transitions import RetryPolicy
from control_plane.jobs.ports import TryAgain
from control_plane.protocols.http1 import HttpAnswer
from tests.unit.jobs.world import CALLER, running, world


async def test_by_its_runner(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        told: list[Job] = []
        runner = here.runner()
        runner._on_ended = told.append
        job = await here.submit()
        async with running(runner):
            await here.until(lambda found: not found.is_open, job.id)
        assert [(each.id, each.state) for each in told] == [(job.id, JobState.SUCCEEDED)]


def again(job: Job, body: bytes) -> HttpAnswer:
    raise TryAgain("not now", was_computed=True)


@pytest.mark.parametrize(("attempts", "state"), [(3, JobState.QUEUED), (1, JobState.DEAD)])
async def test_by_a_runner_that_gives_up_and_not_before(tmp_path: Path, attempts: int, state: JobState) -> None:
    async with world(tmp_path) as here:
        told: list[Job] = []
        here.policy = RetryPolicy(max_attempts=attempts, still_s=0.0)
        here.compute.answer = again
        runner = here.runner()
        runner._on_ended = told.append
        job = await here.submit()
        async with running(runner):
            await here.until(lambda found: found.attempts == 1 and found.state is state, job.id)
        assert [each.state for each in told] == [state] * (state is JobState.DEAD)


async def test_by_its_caller_and_by_its_deadline(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        told: list[Job] = []
        jobs = here.jobs(on_ended=told.append)
        cancelled, late = await here.submit(), await here.submit(1, expires_s=10.0)
        await jobs.cancel(CALLER, cancelled.id)
        await jobs.cancel(CALLER, cancelled.id)
        here.clock_s += 11.0
        await here.sweeper(on_ended=told.append).sweep()
        assert [(each.id, each.state) for each in told] == [(cancelled.id, JobState.CANCELLED), (late.id, JobState.EXPIRED)]
