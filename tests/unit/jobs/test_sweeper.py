from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.domain.job import STILL_S, Job, JobState
from control_plane.jobs.domain.transitions import RetryPolicy, claimed, renewed
from control_plane.jobs.jobs import Jobs
from control_plane.jobs.ports import JobTotals
from tests.unit.jobs.world import CALLER, world


class CountingQueue:
    """A broker's queue, as far as a sweeper sees it."""

    def __init__(self) -> None:
        self.tickets = 0

    async def publish(self, count: int = 1) -> None:
        self.tickets += count

    async def depth(self) -> int:
        return self.tickets


async def test_tickets_that_are_missing_twice_are_written_and_no_more(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        queue = CountingQueue()
        own = here.sweeper(queue=queue)
        for number in range(3):
            await here.submit(number)
        await own.sweep()
        assert queue.tickets == 0, "they may be on their way"
        await own.sweep()
        assert queue.tickets == 3
        for _ in range(3):
            await own.sweep()
        assert queue.tickets == 3


async def test_of_many_missing_tickets_a_sweep_writes_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control_plane.jobs.sweeper._TICKETS_AT_ONCE", 2)
    async with world(tmp_path) as here:
        queue = CountingQueue()
        own = here.sweeper(queue=queue)
        for number in range(5):
            await here.submit(number)
        written = []
        for _ in range(6):
            await own.sweep()
            written.append(queue.tickets)
        assert written == [0, 2, 4, 5, 5, 5]


async def test_a_job_whose_time_is_over_expires_and_leaves_no_body(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        jobs: Jobs = here.jobs()
        job = await here.submit(expires_s=60.0)
        here.clock_s += 59.0
        await here.sweeper().sweep()
        assert (await here.job(job.id)).state is JobState.QUEUED
        here.clock_s += 2.0
        await here.sweeper().sweep()

        ended = await here.job(job.id)
        assert (ended.state, here.files()) == (JobState.EXPIRED, [])
        assert "deadline" in ended.error
        assert await jobs.place(ended) is None


async def test_a_lease_is_not_waited_for_behind_all_that_may_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control_plane.jobs.sweeper._AT_ONCE", 2)
    async with world(tmp_path) as here:
        for number in range(5):
            await here.jobs().cancel(CALLER, (await here.submit(number)).id)
        here.clock_s += here.policy.keep_s - here.policy.lease_s - 1.0
        job = await here.submit(9, expires_s=1e6)
        assert await here.store.replace(claimed(job, holder="gone", now_s=here.clock_s, policy=here.policy))
        here.clock_s += here.policy.lease_s + 2.0
        await here.sweeper().sweep()
        assert [each.id for each in await here.store.jobs_of(None, state=None, before="", limit=9)] == [job.id]
        assert (await here.job(job.id)).state is JobState.QUEUED


async def test_a_defect_of_the_sweep_does_not_end_the_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control_plane.jobs.sweeper._PERIOD_S", 0.001)
    monkeypatch.setattr("control_plane.jobs.sweeper._AFTER_DEFECT_S", 0.001)
    async with world(tmp_path) as here:
        own, swept = here.sweeper(), asyncio.Event()
        sweeps = iter((ValueError("a record of another version"), None))

        async def sweep() -> None:
            if (defect := next(sweeps, None)) is not None:
                raise defect
            swept.set()

        monkeypatch.setattr(own, "sweep", sweep)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(own.run())
            await asyncio.wait_for(swept.wait(), 30)
            task.cancel()


async def test_files_that_no_record_names_are_removed_once_they_are_old(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        kept = await here.submit(expires_s=1e12)
        orphan = f"job-{'f' * 32}"
        await here.spool.write(orphan, "body", [b"a"])
        here.clock_s = os.stat(tmp_path / "spool" / "ff" / orphan).st_mtime + 3000.0
        await here.sweeper().sweep()
        assert here.files() == ["body", "body"]
        here.clock_s += 1000.0
        await here.sweeper().sweep()
        assert [path.parent.name for path in (tmp_path / "spool").glob("*/*/body")] == [kept.id]


async def test_files_that_no_record_names_are_looked_for_also_after_the_clock_was_set_back(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        own, orphan = here.sweeper(), f"job-{'f' * 32}"
        here.clock_s = os.stat(tmp_path).st_mtime + 1e6
        await own.sweep()
        await here.spool.write(orphan, "body", [b"a"])
        here.clock_s = os.stat(tmp_path / "spool" / "ff" / orphan).st_mtime + 4000.0
        await own.sweep()
        assert here.files() == []


async def test_files_that_no_record_names_are_looked_for_in_one_part_of_the_spool_after_another(tmp_path: Path) -> None:
    """Leases are looked after in between: 100,000 jobs take a minute."""
    async with world(tmp_path) as here:
        uptimes_s = count(0.0, 1.0)
        own = here.sweeper(now_s=lambda: next(uptimes_s))
        for digit in "abc":
            await here.spool.write(f"job-{digit * 32}", "body", [b"a"])
        here.clock_s = os.stat(tmp_path).st_mtime + 4000.0
        left = []
        for _ in range(4):
            await own.sweep()
            left.append(len(here.files()))
        assert left == [2, 1, 0, 0]


async def test_who_submits_and_cancels_in_a_loop_keeps_a_bounded_number(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        ids = [(await here.jobs().cancel(CALLER, (await here.submit(number)).id)).id for number in range(8)]
        still_open = await here.submit(9)
        await here.sweeper(kept=JobTotals(3, 1 << 30)).sweep()
        left = await here.store.jobs_of(None, state=None, before="", limit=99)
        assert [job.id for job in left] == [still_open.id, *reversed(ids[-3:])], "the oldest are gone, and nothing that is open"


async def test_whose_clock_is_set_forward_takes_no_job_from_a_runner_that_renews_its_claim(tmp_path: Path) -> None:
    """As by NTP, or on one of several hosts: the leases that the others write have ended then."""
    async with world(tmp_path) as here:
        here.policy, uptime_s = RetryPolicy(), 0.0
        job, runners_s = await here.submit(), here.clock_s
        held = claimed(await here.job(job.id), holder="lives", now_s=runners_s, policy=here.policy)
        assert await here.store.replace(held)
        own = here.sweeper(now_s=lambda: uptime_s)
        here.clock_s += 3600.0

        for _ in range(60):
            uptime_s += 0.5
            await own.sweep()
            if uptime_s % 6.0 == 0.0:
                held = renewed(held, now_s=runners_s + uptime_s, policy=here.policy)
                assert await here.store.replace(held), "it was taken from its runner"

        await own.sweep()
        uptime_s += STILL_S - 1.0
        await own.sweep()
        assert (await here.job(job.id)).state is JobState.RUNNING
        uptime_s += 1.5
        await own.sweep()
        assert (await here.job(job.id)).state is JobState.QUEUED, "its runner has renewed nothing for so long"


async def test_a_runner_that_is_gone_has_lost_its_job_with_its_lease(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.policy = RetryPolicy()
        job = await here.submit()
        assert await here.store.replace(claimed(await here.job(job.id), holder="gone", now_s=here.clock_s, policy=here.policy))
        own, ends_s = here.sweeper(), here.clock_s + here.policy.lease_s
        while here.clock_s < ends_s - 0.5:
            here.clock_s += 0.5
            await own.sweep()
            assert (await here.job(job.id)).state is JobState.RUNNING
        here.clock_s += 1.5
        await own.sweep()
        assert (await here.job(job.id)).state is JobState.QUEUED, "it was watched before that"


async def test_a_runner_that_could_not_renew_its_claim_has_time_to_once_the_store_takes_changes_again(tmp_path: Path) -> None:
    """A Redis whose memory is full answers reads, so that the sweeper goes on, and refuses the runner's renewals."""
    async with world(tmp_path) as here:

        class Full:
            is_full = True

            def __getattr__(self, name: str) -> Any:
                return getattr(here.store, name)

            async def replace(self, job: Job) -> bool:
                if self.is_full:
                    raise StoreUnavailable("full", is_full=True)
                return await here.store.replace(job)

        here.policy, full = RetryPolicy(), Full()
        job = await here.submit()
        assert await here.store.replace(claimed(await here.job(job.id), holder="lives", now_s=here.clock_s, policy=here.policy))
        own = here.sweeper(store=full)
        for _ in range(60):
            here.clock_s += 0.5
            with suppress(StoreUnavailable):
                await own.sweep()
        full.is_full = False
        await own.sweep()
        assert (await here.job(job.id)).state is JobState.RUNNING
        here.clock_s += STILL_S
        await own.sweep()
        assert (await here.job(job.id)).state is JobState.QUEUED, "its runner has renewed nothing"
