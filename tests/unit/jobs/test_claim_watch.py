"""The watch over a runner's claims outlives what is wrong with one of them."""

from __future__ import annotations

import asyncio
from typing import Any

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.claim_watch import Claim, ClaimWatch
from control_plane.jobs.domain.job import Job, JobState
from control_plane.jobs.domain.transitions import RetryPolicy, cancelled, claimed
from tests.aio import run_in_virtual_time
from tests.fakes.jobs import job

POLICY = RetryPolicy()


class Unreadable:
    """A store in which another version has written what this one cannot read."""

    async def get(self, job_id: str) -> Job | None:
        raise TypeError("unexpected keyword argument")


def test_a_record_that_cannot_be_read_ends_no_runner_and_its_claim_only_with_the_lease() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        store: Any = Unreadable()
        watch = ClaimWatch(store, POLICY, loop.time)
        claim = Claim(claimed(job(1), holder="here", now_s=loop.time(), policy=POLICY))
        assert claim.job.state is JobState.RUNNING

        async def compute() -> None:
            with watch.over(claim):
                await asyncio.Event().wait()

        async with asyncio.TaskGroup() as tasks:
            computing, watching = tasks.create_task(compute()), tasks.create_task(watch.run())
            await asyncio.wait((computing, watching), return_when=asyncio.FIRST_COMPLETED)

            assert (claim.is_lost, computing.cancelled(), watching.done()) == (True, True, False)
            assert loop.time() >= claim.job.lease_until_s
            watching.cancel()

    run_in_virtual_time(scenario())


class Back:
    """A store with one job that can be reached from a moment on."""

    def __init__(self, held: Job, *, back_s: float) -> None:
        self.held, self._back_s = held, back_s

    async def get(self, job_id: str) -> Job | None:
        if asyncio.get_running_loop().time() < self._back_s:
            raise StoreUnavailable("away")
        return self.held

    async def replace(self, job: Job) -> bool:
        self.held = job
        return True


def test_an_outage_that_is_longer_than_the_lease_ends_no_computing_and_the_claim_is_renewed_after_it() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        claim = Claim(claimed(job(1, deadline_s=loop.time() + 1e6), holder="here", now_s=loop.time(), policy=POLICY))
        store: Any = Back(claim.job, back_s=loop.time() + 4 * POLICY.lease_s)
        watch = ClaimWatch(store, POLICY, loop.time)
        watching = loop.create_task(watch.run())
        with watch.over(claim):
            await asyncio.sleep(4 * POLICY.lease_s + 2.0)
            assert not claim.is_lost
            assert store.held.lease_until_s > loop.time()
        watching.cancel()
        await asyncio.wait([watching])

    run_in_virtual_time(scenario())


def test_the_computing_of_a_cancelled_job_ends_within_two_seconds() -> None:
    """In virtual time; a DELETE changes the record alone, from whichever gateway it comes."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        held = claimed(job(1, deadline_s=loop.time() + 1e6), holder="here", now_s=loop.time(), policy=POLICY)
        store: Any = Back(held, back_s=0.0)
        watch = ClaimWatch(store, POLICY, loop.time)

        async def compute() -> None:
            with watch.over(Claim(held)):
                await asyncio.Event().wait()

        async with asyncio.TaskGroup() as tasks:
            watching, computing = tasks.create_task(watch.run()), tasks.create_task(compute())
            await asyncio.sleep(10.01)
            store.held, cancelled_s = cancelled(store.held, now_s=loop.time(), policy=POLICY), loop.time()
            await asyncio.wait((computing,))
            assert (computing.cancelled(), loop.time() - cancelled_s <= 2.0) == (True, True)
            watching.cancel()

    run_in_virtual_time(scenario())
