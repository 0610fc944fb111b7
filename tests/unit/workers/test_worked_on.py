"""Fate of requests at a replica that hangs for one worker, in the others."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import DeadlineExceeded
from control_plane.workers.messages.to_workers import WorkedOnElsewhere
from control_plane.workers.worked_on import worked_on
from tests.unit.fleet.fleet_bench import READY
from tests.unit.fleet.routing.faults.overdue_watch_bench import Wedged, keep_asking
from tests.unit.workers.worker_bench import Parent, Worker, serving

pytestmark = pytest.mark.virtual_time


def test_of_each_replica_the_oldest_is_told() -> None:
    requests = [("s1", "a", 4.0), ("s0", "b", 3.0), ("s0", "a", 2.0), ("s1", "a", 1.0), ("s1", "a", 2.0)]
    assert worked_on(requests) == WorkedOnElsewhere((("s0", "a", 2.0), ("s0", "b", 3.0), ("s1", "a", 1.0)))


async def both_ready(parent: Parent) -> Wedged:
    for triton in parent.tritons.values():
        triton.states["a"] = READY
    await asyncio.sleep(1.0)
    return Wedged(parent)


@pytest.mark.parametrize("timeout_s", [2.0, 25.0], ids=["given up", "waited for"])
async def test_what_waits_behind_another_workers_endless_request_is_sent_elsewhere(timeout_s: float) -> None:
    parent = Parent(servers=2)
    async with serving(parent) as (one, other), asyncio.TaskGroup() as tasks:
        tritons, told = await both_ready(parent), list[float]()
        asking = [
            tasks.create_task(keep_asking(tritons, parent.now_s() + 10.0, told, dispatch=each.fleet.dispatch))
            for each in (one, other, other, other)
        ]
        await asyncio.sleep(0.5)
        with pytest.raises(DeadlineExceeded):
            await tritons.ask(3600.0, timeout_s=timeout_s, is_repeatable=False, dispatch=one.fleet.dispatch)
        await asyncio.gather(*asking)
        assert max(told) < 3.5
        for task in tritons.tasks:
            task.cancel()


async def test_another_workers_long_request_is_computed_once_and_its_own_answers_clear_the_replica() -> None:
    parent = Parent(servers=2)
    async with serving(parent) as (one, other):
        tritons = await both_ready(parent)
        assert [await tritons.ask(5.0, dispatch=one.fleet.dispatch) for _ in range(2)]
        assert worked_on(one.fleet.dispatch.awaited()).requests == ()
        await asyncio.sleep(0.5)
        assert not others_work_at(other, "s0")
        assert not others_work_at(other, "s1")
        long = asyncio.get_running_loop().create_task(tritons.ask(5.0, dispatch=one.fleet.dispatch))
        await asyncio.sleep(2.0)
        assert sum(others_work_at(other, server) for server in ("s0", "s1")) == 1
        busy = next(server for server in ("s0", "s1") if others_work_at(other, server))
        assert await tritons.ask(dispatch=other.fleet.dispatch)
        await long
        await asyncio.sleep(1.0)
        assert not others_work_at(other, busy)
        assert len(tritons.tasks) == 4


async def test_what_was_sent_to_a_former_replica_says_nothing_of_its_successor() -> None:
    parent = Parent(servers=1)
    async with serving(parent) as (one, _):
        parent.tritons["s0"].states["a"] = READY
        await asyncio.sleep(1.0)
        for since_s, counts in ((one.replica("a").since_s - 0.1, False), (parent.now_s(), True)):
            one.take(WorkedOnElsewhere((("s0", "a", since_s), ("s0", "gone", since_s), ("gone", "a", since_s))))
            assert others_work_at(one, "s0") is counts


def others_work_at(worker: Worker, server: str) -> bool:
    return worker.replica("a", server).worked_on_elsewhere_s < float("inf")
