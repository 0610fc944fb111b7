from __future__ import annotations

import os
from pathlib import Path

from control_plane.jobs.domain.job import JobState
from control_plane.jobs.jobs import Jobs
from control_plane.jobs.sweeper import Sweeper
from tests.unit.jobs.world import World, world


class CountingQueue:
    """A broker's queue, as far as a sweeper sees it."""

    def __init__(self) -> None:
        self.tickets = 0

    async def publish(self, count: int = 1) -> None:
        self.tickets += count

    async def depth(self) -> int:
        return self.tickets


def sweeper(here: World, queue: CountingQueue) -> Sweeper:
    parts = {"store": here.store, "queue": queue, "spool": here.spool, "usage": here.usage}
    return Sweeper(**parts, policy=here.policy, today_s=here.now_s)  # type: ignore[arg-type]  # as much of a queue as it needs


async def test_tickets_that_are_missing_twice_are_written_and_no_more(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        queue = CountingQueue()
        own = sweeper(here, queue)
        for number in range(3):
            await here.submit(number)
        await own.sweep()
        assert queue.tickets == 0, "they may be on their way"
        await own.sweep()
        assert queue.tickets == 3
        for _ in range(3):
            await own.sweep()
        assert queue.tickets == 3


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
        assert await here.spool.jobs(before_s=1e12) == [kept.id]
