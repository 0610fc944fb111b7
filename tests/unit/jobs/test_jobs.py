from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from control_plane.core.errors import IdempotencyKeyReused, ModelNotFound, StoreUnavailable
from control_plane.jobs.adapters.polled_tickets import PolledTickets
from control_plane.jobs.domain.delivery import Delivery
from control_plane.jobs.domain.job import Blob, Job, JobState
from control_plane.jobs.domain.transitions import RetryPolicy
from control_plane.jobs.jobs import Jobs, Submission
from control_plane.jobs.ports import Bounds, JobBackend, JobTotals
from tests.fakes.jobs import ROOMY, job
from tests.unit.jobs.world import CALLER, WANTED, world


async def test_while_the_process_drains_a_job_that_nobody_has_begun_is_not_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        jobs, job = here.jobs(), await here.submit()
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(jobs.wait(job, 3600.0))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            jobs.drain(30.0)
            assert (await asyncio.wait_for(waiting, 60.0)).state is JobState.QUEUED


@pytest.mark.virtual_time
@pytest.mark.parametrize("drains_s", [(30.0,), (30.0, 0.0)])
async def test_who_waits_for_one_that_runs_is_told_so_before_the_process_ends(drains_s: tuple[float, ...]) -> None:
    running = replace(job(1), state=JobState.RUNNING)

    class Store:
        async def get(self, job_id: str) -> Job:
            return running

    store: Any = Store()
    nothing: Any = None
    jobs, loop = Jobs(JobBackend(store, nothing, nothing), bounds=ROOMY, policy=RetryPolicy(), expire_s=1e4), asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(jobs.wait(running, 60.0))
        await asyncio.sleep(10.0)
        began_s = loop.time()
        for timeout_s in drains_s:
            jobs.drain(timeout_s)
        assert await waiting == running
    took_s = loop.time() - began_s
    assert took_s == pytest.approx(29.0 if drains_s == (30.0,) else 0.25, abs=0.3)


@pytest.mark.virtual_time
async def test_of_thousands_that_wait_each_looks_less_often(tmp_path: Path) -> None:
    """Or a tenant whose callers only wait takes the processor from everybody."""
    looks = dict[str, int]()

    class Store:
        async def get(self, job_id: str) -> Job:
            looks[job_id] = looks.get(job_id, 0) + 1
            return held[job_id]

    store: Any = Store()
    nothing: Any = None
    jobs = Jobs(JobBackend(store, nothing, nothing), bounds=ROOMY, policy=RetryPolicy(), expire_s=1e4)
    crowds, other = replace(job(1), tenant="crowd"), replace(job(2), tenant="other")
    held = {each.id: each for each in (crowds, other)}
    async with asyncio.TaskGroup() as tasks:
        for _ in range(10_000):
            tasks.create_task(jobs.wait(crowds, 60.0))
        tasks.create_task(jobs.wait(other, 60.0))
    assert looks[crowds.id] <= 70_000, "six of each"
    assert looks[other.id] > 110


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"webhook": None}, id="no-webhook"),
        pytest.param({"webhook": Delivery("https://b.example/")}, id="another-webhook"),
        pytest.param({"output": Delivery("/data/b")}, id="another-output"),
        pytest.param({"body": b"another"}, id="another-body"),
        pytest.param({"target": "/v2/models/m/versions/2/infer"}, id="another-version"),
    ],
)
async def test_an_idempotency_key_is_for_one_request_with_what_is_told_and_written(tmp_path: Path, other: dict[str, Any]) -> None:
    wanted: dict[str, Any] = {"idempotency_key": "one", "webhook": Delivery("https://a.example/"), "output": Delivery("/data/a")}
    async with world(tmp_path) as here:
        first = await here.submit(**wanted)
        assert (await here.submit(**wanted)).id == first.id
        with pytest.raises(IdempotencyKeyReused):
            await here.submit(**(wanted | other))


async def test_a_body_that_a_full_disk_has_ended_takes_no_room_from_the_next(tmp_path: Path) -> None:
    class Rest:
        """A body of whose end nothing comes."""

        async def receive(self) -> None:
            return None

    async with world(tmp_path) as here:
        jobs = here.jobs(bounds=Bounds(JobTotals(9, 4), JobTotals(9, 4)))
        wanted = Submission(model="m", target="/v2/models/m/infer", headers=(), body=b"body", rest=Rest())
        spool = here.spool.receive

        async def full(job_id: str, name: str, pieces: AsyncIterator[bytes | bytearray]) -> Blob:
            async for _ in pieces:
                raise StoreUnavailable("the disk is full", is_full=True)
            raise AssertionError

        here.spool.receive = full  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable) as kept:
            await jobs.submit(CALLER, wanted)
        here.spool.receive = spool  # type: ignore[method-assign]
        await jobs.submit(CALLER, wanted)
        assert kept.tb, "the error is still there, and with it all that had a part in it"


async def test_a_job_for_a_model_that_nobody_knows_is_refused_unless_it_was_made_before(tmp_path: Path) -> None:
    missing = set[str]()

    async def require_model(name: str) -> None:
        if name in missing:
            raise ModelNotFound(f"Request for unknown model: '{name}' is not found")

    async with world(tmp_path) as here:
        jobs = here.jobs()
        jobs.require_model = require_model
        first = await jobs.submit(CALLER, WANTED)
        missing.add(WANTED.model)
        assert (await jobs.submit(CALLER, WANTED)).id == first.id
        for key in ("two", ""):
            with pytest.raises(ModelNotFound, match=r"^Request for unknown model: 'm' is not found$"):
                await jobs.submit(CALLER, replace(WANTED, idempotency_key=key))
        assert [job.id for job in await here.store.jobs_of(None, state=None, before="", limit=9)] == [first.id]


async def test_a_broker_that_takes_no_ticket_and_says_nothing_holds_up_no_caller_for_long(tmp_path: Path) -> None:
    class Blocked(PolledTickets):
        async def publish(self, count: int = 1) -> None:
            await asyncio.Event().wait()

    async with world(tmp_path) as here:
        jobs = Jobs(here.backend(queue=Blocked(here.store)), bounds=ROOMY, policy=here.policy, expire_s=1e4, today_s=here.now_s)
        async with asyncio.timeout(4.0):  # a call to a broker has ten seconds
            job = await jobs.submit(CALLER, WANTED)
        assert (await here.job(job.id)).state is JobState.QUEUED


async def test_ids_begin_with_the_time_of_submission(tmp_path: Path) -> None:
    """So what jobs that come together change in indexes lies together, and is written to the disk once for all of them."""
    async with world(tmp_path) as here:
        jobs = [await here.submit() for _ in range(20)]
    times_ms = [int(job.id.removeprefix("job-")[:12], 16) for job in jobs]
    assert times_ms == sorted(times_ms)
    assert all(abs(job.submitted_s * 1e3 - time_ms) < 60_000 for job, time_ms in zip(jobs, times_ms, strict=True))
