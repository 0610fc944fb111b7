from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.domain.job import Job, JobState
from control_plane.jobs.ports import Computed, TryAgain
from control_plane.protocols.http1 import HttpAnswer, make_answer
from tests.unit.jobs.world import CALLER, World, running, world


def raising(*errors: Exception) -> Any:
    """Answers that raise these, one after the other, and then succeed."""
    left = list(errors)

    def answer(job: Job, body: bytes) -> HttpAnswer:
        if left:
            raise left.pop(0)
        return make_answer(200, body)

    return answer


async def after_delays(here: World, job_id: str) -> Job:
    """The job at its end; delays before further attempts take no time."""
    async with asyncio.timeout(90.0):
        while (found := await here.job(job_id)).is_open or (found.charge is not None and not found.is_charged):
            if found.state is JobState.QUEUED and found.ready_s > here.clock_s:
                here.clock_s = found.ready_s
            await asyncio.sleep(0.005)
    return found


@pytest.mark.parametrize(
    ("errors", "state", "attempts"),
    [
        pytest.param([], JobState.SUCCEEDED, 1, id="at-once"),
        pytest.param([TryAgain("busy", was_computed=False, retry_after_s=7.0)] * 9, JobState.SUCCEEDED, 1, id="refusals-do-not-count"),
        pytest.param([TryAgain("broke", was_computed=True)] * 2, JobState.SUCCEEDED, 3, id="third-time"),
        pytest.param([TryAgain("broke", was_computed=True)] * 3, JobState.DEAD, 3, id="too-often"),
        pytest.param([ValueError("a defect")] * 3, JobState.DEAD, 3, id="defect"),
    ],
)
async def test_attempts_are_repeated_as_often_as_they_may(tmp_path: Path, errors: list[Exception], state: JobState, attempts: int) -> None:
    async with world(tmp_path) as here:
        here.compute.answer = raising(*errors)
        job = await here.submit()
        async with running(here.runner()):
            ended = await after_delays(here, job.id)

    assert (ended.state, ended.attempts) == (state, attempts)
    assert here.usage.requests() == (1 if state is JobState.SUCCEEDED else 0)
    assert "a defect" not in ended.error


async def test_a_clock_that_is_behind_or_was_put_back_holds_up_no_job(tmp_path: Path) -> None:
    async with world(tmp_path) as here, asyncio.timeout(30.0):
        job = await here.submit()
        here.clock_s -= 500.0
        async with running(here.runner()):
            ended = await here.until(lambda job: not job.is_open, job.id)
    assert ended.state is JobState.SUCCEEDED


async def test_an_error_that_would_be_met_again_is_the_result(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.compute.answer = lambda job, body: make_answer(400, b"wrong shape")
        job = await here.submit()
        async with running(here.runner()):
            ended = await after_delays(here, job.id)
        assert (ended.state, ended.attempts) == (JobState.FAILED, 1)
        assert (await here.jobs().result(ended)).endswith(b"\r\n\r\nwrong shape")
        assert [usage.failed for batch in here.usage.batches.values() for _, usage in batch.sums] == [1]


async def test_a_body_that_is_not_what_was_accepted_is_not_computed(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        job = await here.submit()
        next((tmp_path / "spool").glob("*/*/body")).write_bytes(b"other ")
        async with running(here.runner()):
            ended = await after_delays(here, job.id)

    assert ended.state is JobState.DEAD
    assert "digest" in ended.error
    assert here.compute.begun == []


async def test_while_it_computes_it_renews_its_lease(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.compute.may_answer.clear()
        job = await here.submit()
        async with running(here.runner()):
            held = await here.until(lambda job: job.state is JobState.RUNNING, job.id)
            here.clock_s += 10.0
            renewed = await here.until(lambda job: job.lease_until_s > held.lease_until_s, job.id)
            assert (renewed.fence, renewed.attempts) == (1, 1)
            here.compute.may_answer.set()
            assert (await after_delays(here, job.id)).state is JobState.SUCCEEDED


async def test_a_claim_from_before_the_clock_was_set_back_is_renewed_and_does_not_last_for_as_long(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.compute.may_answer.clear()
        job = await here.submit()
        async with running(here.runner()):
            held = await here.until(lambda job: job.state is JobState.RUNNING, job.id)
            here.clock_s -= 600.0
            renewed = await here.until(lambda job: job.lease_until_s < held.lease_until_s, job.id)
            assert (renewed.state, renewed.fence) == (JobState.RUNNING, 1)
            here.compute.may_answer.set()
            assert (await after_delays(here, job.id)).state is JobState.SUCCEEDED


async def test_a_cancelled_job_ends_the_computing_and_frees_the_runner(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.compute.may_answer.clear()
        job, other = await here.submit(1), await here.submit(2)
        async with running(here.runner()) as task:
            await here.until(lambda job: job.state is JobState.RUNNING, job.id)
            await here.jobs().cancel(CALLER, job.id)
            async with asyncio.timeout(90.0):
                await here.until(lambda job: job.state is JobState.RUNNING, other.id)
            here.compute.may_answer.set()
            await after_delays(here, other.id)
            assert not task.done()

        assert (await here.job(job.id)).state is JobState.CANCELLED
        assert here.usage.requests() == 1


async def test_a_stop_gives_back_what_is_not_done_in_time_and_it_does_not_count(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.compute.may_answer.clear()
        job, waiting = await here.submit(1), await here.submit(2)
        runner = here.runner()
        async with running(runner):
            await here.until(lambda job: job.state is JobState.RUNNING, job.id)
            await runner.drain(0.05)

            back = await here.job(job.id)
            assert (back.state, back.attempts, back.holder) == (JobState.QUEUED, 0, "")
            assert back.ready_s <= here.clock_s
            assert (await here.job(waiting.id)).fence == 0, "nothing is claimed during a drain"
            assert runner.running == 0


async def test_a_drain_lets_end_what_ends_in_time(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.compute.may_answer.clear()
        job = await here.submit()
        runner = here.runner()
        async with running(runner):
            await here.until(lambda job: job.state is JobState.RUNNING, job.id)
            asyncio.get_running_loop().call_later(0.05, here.compute.may_answer.set)
            await runner.drain(30.0)
            assert (await here.job(job.id)).state is JobState.SUCCEEDED


class FlakyStore:
    """A store that takes a change and then does not answer, once."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def replace(self, job: Job) -> bool:
        done = await self._store.replace(job)
        if job.result is not None and not job.is_charged and not self.lost:
            self.lost += 1
            raise StoreUnavailable("no answer")
        return bool(done)


async def test_a_change_whose_answer_is_lost_is_found_to_be_done(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        flaky = FlakyStore(here.store)
        job = await here.submit()
        async with running(here.runner(store=flaky)):
            ended = await after_delays(here, job.id)

    assert flaky.lost == 1
    assert (ended.state, ended.fence) == (JobState.SUCCEEDED, 1)
    assert here.usage.requests() == 1


async def test_a_result_outlives_an_outage_that_is_longer_than_the_lease(tmp_path: Path) -> None:
    async with world(tmp_path) as here:

        class Away(FlakyStore):
            async def replace(self, job: Job) -> bool:
                if job.result is not None and not self.lost:
                    self.lost += 1
                    here.clock_s += 60.0
                    raise StoreUnavailable("away")
                return bool(await self._store.replace(job))

        job, away = await here.submit(), Away(here.store)
        async with running(here.runner(store=away)):
            ended = await after_delays(here, job.id)

    assert (away.lost, ended.state, ended.fence, len(here.compute.begun)) == (1, JobState.SUCCEEDED, 1, 1)


def away_at_first(method: Any, times: int) -> Any:
    """The method of a spool whose disk is away so many times."""
    left = [StoreUnavailable("the disk is away")] * times

    async def may_be_away(*arguments: Any, **named: Any) -> Any:
        if left:
            raise left.pop()
        return await method(*arguments, **named)

    return may_be_away


@pytest.mark.parametrize("method", ["write", "read"])
async def test_a_disk_that_is_full_or_away_for_a_while_costs_no_attempt(tmp_path: Path, method: str) -> None:
    async with world(tmp_path) as here:
        job = await here.submit()
        setattr(here.spool, method, away_at_first(getattr(here.spool, method), 6))
        async with running(here.runner()):
            ended = await after_delays(here, job.id)
    assert (ended.state, ended.attempts, len(here.compute.begun)) == (JobState.SUCCEEDED, 1, 1)


async def test_a_result_that_cannot_be_kept_until_the_deadline_ends_with_it(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        job = await here.submit()

        async def full(*arguments: Any, **named: Any) -> Any:
            here.clock_s = job.deadline_s
            raise StoreUnavailable("the disk is full", is_full=True)

        here.spool.write = full  # type: ignore[method-assign]
        async with running(here.runner()), running(here.sweeper()):
            ended = await after_delays(here, job.id)
    assert (ended.state, ended.error) == (JobState.EXPIRED, "the disk is full")


async def test_as_many_run_at_a_time_as_the_gate_allows(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.compute.may_answer.clear()
        jobs = [await here.submit(number) for number in range(6)]
        runner = here.runner(slots=3)
        async with running(runner):
            while len(here.compute.begun) < 3:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.3)
            assert (len(here.compute.begun), runner.running) == (3, 3)
            here.compute.may_answer.set()
            for job in jobs:
                await after_delays(here, job.id)

    assert here.usage.requests() == 6
    assert isinstance(await here.compute.compute(jobs[0], b""), Computed)
