"""Whoever dies before or after whichever step: what was accepted is computed, has one result, and is charged once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from control_plane.jobs.domain.job import Job, JobState
from control_plane.jobs.pruning import BODY_KEPT_S
from tests.aio import run
from tests.fakes.jobs import ROOMY
from tests.unit.jobs.world import CALLER, WANTED, Fate, Killed, World, running, world

LEASE_OVER_S = 60.0


async def live_through(here: World, job_id: str) -> Job:
    """A process that does not die comes, after the leases of the dead are over."""
    here.clock_s += LEASE_OVER_S
    sweeper = here.sweeper()
    async with running(here.runner()):
        for _ in range(500):
            await sweeper.sweep()
            job = await here.job(job_id)
            if job.state is JobState.QUEUED and job.ready_s > here.clock_s:
                here.clock_s = job.ready_s  # the delay before the next attempt
            if not job.is_open and (job.charge is None or job.is_charged):
                break
            if not job.is_open:
                here.clock_s += 10.0  # until the sweeper looks after what was not charged
            await asyncio.sleep(0.005)
    return await here.job(job_id)


def calls_of_a_runner(folder: Path, carries_bytes: int) -> list[str]:
    """What a runner that lives asks of the outside for one job, until that is charged."""

    async def main() -> list[str]:
        async with world(folder, carries_bytes=carries_bytes) as here:
            job = await here.submit()
            fate = Fate()
            async with running(here.runner(fate)):
                await here.until(lambda job: job.is_charged, job.id)
                here.clock_s += BODY_KEPT_S
                while "body" in here.files():
                    await asyncio.sleep(0.005)
            return fate.made

    return run(main())


SPOOLED, CARRIED = 0, 1000
"""A store whose records carry nothing, and one whose records carry the bodies and results of these tests."""
STEPS = {
    SPOOLED: ("take", "waiting", "claim", "read", "write", "replace", "ack", "add_all", "note_charged", "prune"),
    CARRIED: ("take", "waiting", "claim", "read", "replace", "ack", "add_all", "note_charged"),
}


@pytest.mark.parametrize("carries_bytes", [pytest.param(SPOOLED, id="spooled"), pytest.param(CARRIED, id="carried")])
def test_a_runner_takes_these_steps(tmp_path: Path, carries_bytes: int) -> None:
    """The matrix below kills at each of them; a step that is added here is killed at, too."""
    made = calls_of_a_runner(tmp_path, carries_bytes)

    assert tuple(each.partition(".")[2] for each in made) == STEPS[carries_bytes]


def steps() -> list[Any]:
    return [
        pytest.param(carries_bytes, at, id=f"{'carried' if carries_bytes else 'spooled'}-{at}")
        for carries_bytes, names in STEPS.items()
        for at, _ in enumerate(names, start=1)
    ]


@pytest.mark.parametrize("is_after", [pytest.param(False, id="before"), pytest.param(True, id="after")])
@pytest.mark.parametrize(("carries_bytes", "at"), steps())
async def test_a_runner_that_dies_at_any_step_costs_nothing(tmp_path: Path, carries_bytes: int, at: int, is_after: bool) -> None:
    async with world(tmp_path, carries_bytes=carries_bytes) as here:
        job = await here.submit()
        fate, after_s = Fate(at, is_after), here.clock_s + 2 * BODY_KEPT_S
        async with running(here.runner(fate)) as dying:
            async with asyncio.timeout(90.0):
                while not fate.is_dead:
                    await asyncio.sleep(0.005)
                    if (await here.job(job.id)).is_charged:
                        here.clock_s = after_s  # nothing is left to do but to prune
            dying.cancel()

        ended = await live_through(here, job.id)

        assert ended.state is JobState.SUCCEEDED
        assert ended.result is not None
        assert (await here.spool.read(ended.result.blob)).endswith(b"body 0")
        assert (len(here.usage.batches), here.usage.requests()) == (1, 1), "charged once, whatever was sent again"
        here.clock_s += 2 * here.policy.keep_s
        await here.sweeper().sweep()
        await here.sweeper().sweep()
        assert here.files() == [], "nothing is left in the spool once the result is no longer kept"
        assert await here.store.get(job.id) is None


@pytest.mark.parametrize("is_after", [pytest.param(False, id="before"), pytest.param(True, id="after")])
@pytest.mark.parametrize(("carries_bytes", "at"), [*((SPOOLED, at) for at in range(1, 5)), (CARRIED, 1), (CARRIED, 2)])
async def test_a_gateway_that_dies_while_it_accepts_leaves_one_job_for_who_asks_again(
    tmp_path: Path, carries_bytes: int, at: int, is_after: bool
) -> None:
    async with world(tmp_path, carries_bytes=carries_bytes) as here:
        fate = Fate(at, is_after)
        with pytest.raises(Killed):
            await here.jobs(fate).submit(CALLER, WANTED)
        assert fate.is_dead, fate.made

        again = await here.jobs().submit(CALLER, WANTED)
        ended = await live_through(here, again.id)

        assert ended.state is JobState.SUCCEEDED
        assert len(await here.jobs().jobs_of("team", state=None, before="", limit=10)) == 1
        assert here.usage.requests() == 1


@pytest.mark.parametrize("is_after", [pytest.param(False, id="before"), pytest.param(True, id="after")])
@pytest.mark.parametrize(("at", "step"), [(1, "get"), (2, "replace"), (3, "prune")])
async def test_a_gateway_that_dies_while_it_cancels_has_cancelled_or_not(tmp_path: Path, at: int, step: str, is_after: bool) -> None:
    async with world(tmp_path) as here:
        job, fate = await here.submit(), Fate(at, is_after)
        with pytest.raises(Killed):
            await here.jobs(fate).cancel(CALLER, job.id)
        assert fate.made[-1].endswith(f".{step}")

        is_cancelled = (step, is_after) not in (("get", False), ("get", True), ("replace", False))
        ended = await live_through(here, job.id)

        assert ended.state is (JobState.CANCELLED if is_cancelled else JobState.SUCCEEDED)
        assert here.usage.requests() == (0 if is_cancelled else 1)
        assert (await here.jobs().cancel(CALLER, job.id)).state is ended.state, "who asks again is told the same"
        here.clock_s += 2 * here.policy.keep_s
        await here.sweeper().sweep()
        assert here.files() == []


@pytest.mark.parametrize("is_after", [pytest.param(False, id="before"), pytest.param(True, id="after")])
@pytest.mark.parametrize("at", range(1, 4))
async def test_a_sweeper_that_dies_leaves_what_it_did_to_the_next(tmp_path: Path, at: int, is_after: bool) -> None:
    async with world(tmp_path) as here:
        job = await here.submit()
        dying = Fate(at=STEPS[SPOOLED].index("add_all") + 1)  # the result is final, and not charged
        async with running(here.runner(dying)) as runner:
            while not dying.is_dead:
                await asyncio.sleep(0.005)
            runner.cancel()
        assert (await here.job(job.id)).state is JobState.SUCCEEDED
        here.clock_s += LEASE_OVER_S
        with pytest.raises(Killed):
            await here.sweeper(Fate(at, is_after)).sweep()

        await live_through(here, job.id)

        assert (len(here.usage.batches), here.usage.requests()) == (1, 1)


async def test_a_job_under_which_every_runner_dies_is_dead_and_not_tried_for_ever(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        job = await here.submit()
        for _ in range(here.policy.max_attempts):
            fate = Fate(at=STEPS[SPOOLED].index("read") + 1, is_after=True)  # it is computed now
            async with running(here.runner(fate)) as dying:
                while not fate.is_dead:
                    await asyncio.sleep(0.005)
                dying.cancel()
            here.clock_s += LEASE_OVER_S
            await here.sweeper().sweep()
            here.clock_s += LEASE_OVER_S

        dead = await here.job(job.id)

        assert (dead.state, dead.attempts) == (JobState.DEAD, 3)
        assert "ended" in dead.error
        assert here.files() == ["body"], "an administrator may queue it again"
        again = await here.jobs().requeue(job.id)
        assert (await live_through(here, again.id)).state is JobState.SUCCEEDED


async def test_a_job_that_ended_in_a_store_that_was_then_set_back_is_computed_again(tmp_path: Path) -> None:
    """As by a power cut at a Redis that flushes once a second: the body is still there."""
    async with world(tmp_path) as here:
        job = await here.submit()
        before = await here.job(job.id)
        async with running(here.runner()):
            await here.until(lambda job: job.is_charged, job.id)
            await here.store.remove(await here.job(job.id))
            await here.store.add(before, ROOMY)

            ended = await here.until(lambda job: not job.is_open, job.id)
            assert ended.result is not None, ended.error
            await here.until(lambda job: job.is_charged, job.id)

        assert (await here.spool.read(ended.result.blob)).endswith(b"body 0")
        here.clock_s += 2 * here.policy.keep_s
        await here.sweeper().sweep()
        assert here.files() == []


async def test_two_runners_of_which_one_was_held_still_make_one_result(tmp_path: Path) -> None:
    """The first computes for longer than its lease without a sign of life; the second finishes; the first finds that out."""
    async with world(tmp_path) as here:
        job = await here.submit()
        here.compute.may_answer.clear()
        async with running(here.runner()):
            await here.until(lambda job: job.state is JobState.RUNNING, job.id)
            here.clock_s += LEASE_OVER_S
            await here.sweeper().sweep()
            assert (await here.job(job.id)).state is JobState.QUEUED
            here.clock_s += LEASE_OVER_S
            async with running(here.runner(compute=type(here.compute)())):
                ended = await here.until(lambda job: job.is_charged, job.id)
            here.compute.may_answer.set()
            await asyncio.sleep(0.1)

            assert await here.job(job.id) == ended
            assert ended.result is not None
            assert (ended.fence, ended.result.blob.name) == (2, f"{job.id}/result-2")
            assert here.usage.requests() == 1
