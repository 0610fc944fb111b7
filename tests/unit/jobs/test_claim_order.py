"""In which order a runner claims what waits in a real store: the policy of `domain/claims` with what it is given."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from control_plane.jobs.domain.job import Job, PriceClass, carried
from control_plane.protocols.http1 import HttpAnswer, make_answer
from tests.fakes.jobs import ROOMY, job, job_id
from tests.unit.jobs.world import World, running, world


async def begun(here: World, jobs: list[Job], *, slots: int = 1, weights: dict[str, float] | None = None) -> list[str]:
    """The jobs' ids in the order in which their computing begins."""

    def answer(job: Job, body: bytes) -> HttpAnswer:
        here.clock_s += 0.001  # who has waited the longest for a claim shows by the time
        return make_answer(200)

    here.compute.answer = answer
    for each in jobs:
        await here.store.add(each, ROOMY)
    async with asyncio.timeout(90.0), running(here.runner(slots=slots, weights=weights)):
        for each in jobs:
            await here.until(lambda job: not job.is_open, each.id)
    return here.compute.begun


def waiting(number: int, **fields: object) -> Job:
    body = carried(job_id(number), "body", b"body")
    return job(number, **({"due_s": 5000.0 + number, "deadline_s": 9000.0, "body": body} | fields))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"due_s": 4000.0}, {}, id="due-before"),
        pytest.param({"model": "hot"}, {"due_s": 4000.0}, id="its-model-is-loaded"),
        pytest.param({"due_s": 999.0}, {"model": "hot"}, id="passed-over-for-long-enough"),
        pytest.param({}, {"due_s": 4000.0, "price_class": PriceClass.ECONOMY}, id="standard-before-economy"),
        pytest.param({"due_s": 999.0, "price_class": PriceClass.ECONOMY}, {"model": "hot"}, id="economy-for-long-enough"),
    ],
)
async def test_the_best_job_is_claimed_first(tmp_path: Path, first: dict[str, object], second: dict[str, object]) -> None:
    async with world(tmp_path) as here:
        here.compute.hot = {"hot"}
        assert await begun(here, [waiting(1, **second), waiting(2, **first)]) == [job_id(2), job_id(1)]


async def test_tenants_run_as_many_as_their_weights_say(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        jobs = [waiting(10 * number + at, tenant=tenant) for at, tenant in enumerate("abc") for number in range(8)]
        here.compute.may_answer.clear()
        claiming = asyncio.get_running_loop().create_task(begun(here, jobs, slots=7, weights={"a": 4.0, "b": 2.0}))
        async with asyncio.timeout(60.0):
            while len(here.compute.begun) < 7:
                await asyncio.sleep(0.005)
        assert Counter(int(each[4:], 16) % 10 for each in here.compute.begun) == {0: 4, 1: 2, 2: 1}
        here.compute.may_answer.set()
        await claiming


async def test_a_tenant_with_fifty_times_the_jobs_delays_another_by_no_more_than_its_share(tmp_path: Path) -> None:
    """By the place of the small tenant's median job among all: beside as many of the other's as of its own, and beside fifty times as
    many that came before."""

    async def median(others: int) -> int:
        async with world(tmp_path / str(others)) as here:
            big = [waiting(number, tenant="big") for number in range(others)]
            small = [waiting(1000 + number, tenant="small") for number in range(5)]
            order = await begun(here, big + small)
            places = sorted(order.index(each.id) for each in small)
            return places[len(places) // 2]

    for others in (5, 250):
        (tmp_path / str(others)).mkdir()
    assert await median(250) <= 1.5 * await median(5)
