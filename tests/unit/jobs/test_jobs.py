from __future__ import annotations

import asyncio
from pathlib import Path

from control_plane.jobs.domain.job import JobState
from tests.unit.jobs.world import world


async def test_while_the_process_drains_a_job_that_nobody_has_begun_is_not_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        jobs, job = here.jobs(), await here.submit()
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(jobs.wait(job, 3600.0))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            jobs.drain()
            assert (await asyncio.wait_for(waiting, 60.0)).state is JobState.QUEUED
