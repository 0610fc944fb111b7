"""Workers that drain, hang or have observed something: what their parent makes of it."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.inference.domain.observation import Observation
from control_plane.triton.compute_time import OpenCharge
from control_plane.workers.messages.from_workers import ArmsObserved, Charges, CountsReported, Drained
from control_plane.workers.messages.to_workers import AnnounceDrain, Drain, RolloutGivenUp
from tests.aio import settle
from tests.unit.workers.parent.workers_bench import counted
from tests.unit.workers.workers_bench import opened, speaking

pytestmark = pytest.mark.virtual_time


class TestDrain:
    async def test_returns_when_all_have_ended_and_none_is_started_again(self) -> None:
        async with opened() as bench, asyncio.TaskGroup() as tasks:
            draining = tasks.create_task(bench.workers.drain(4.0))
            await settle()
            assert all(worker.told[-1] == Drain(4.0) for worker in bench.started)
            bench.started[0].end()
            await settle()
            assert not draining.done()
            bench.started[1].end()
            await draining
            await asyncio.sleep(100)
            assert len(bench.started) == 2
            assert asyncio.get_running_loop().time() < 110

    async def test_is_over_when_none_has_requests_in_flight_and_their_end_is_waited_for_apart(self) -> None:
        async with opened() as bench, asyncio.TaskGroup() as tasks:
            draining = tasks.create_task(bench.workers.drain(4.0))
            for worker in bench.started:
                worker.say(Charges([OpenCharge("t", "m", "m", 1.0)]))
                worker.say(Drained())
            await draining
            assert len(bench.charges.open) == 2
            ending = tasks.create_task(bench.workers.end())
            await asyncio.sleep(2.0)
            bench.started[0].end()
            await settle()
            assert not ending.done()
            await ending
            assert asyncio.get_running_loop().time() == pytest.approx(4.5, abs=0.1)
            assert [worker.is_killed for worker in bench.started] == [True, True], "the first after it has ended, which does nothing"

    async def test_kills_what_is_not_drained_in_time(self) -> None:
        async with opened() as bench:
            bench.started[0].say(Drained())
            await bench.workers.drain(4.0)
            assert asyncio.get_running_loop().time() == pytest.approx(5.0, abs=0.1)
            assert [worker.is_killed for worker in bench.started] == [False, True]

    async def test_is_cut_short_by_a_second_one(self) -> None:
        async with opened() as bench, asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.workers.drain(1000.0))
            await asyncio.sleep(1.0)
            cutting = tasks.create_task(bench.workers.drain(0.0))
            await settle()
            assert all(worker.told[-2:] == [Drain(1000.0), Drain(0.0)] for worker in bench.started)
            for worker in bench.started:
                worker.say(Drained())
            await cutting
            assert asyncio.get_running_loop().time() < 2.0

    async def test_is_announced_to_all_and_one_that_dies_then_is_not_replaced(self) -> None:
        async with opened() as bench, speaking(bench.started[1]):
            bench.workers.announce_drain()
            assert all(worker.told[-1] == AnnounceDrain() for worker in bench.started)
            bench.started[0].end()
            await asyncio.sleep(20.0)
            assert (len(bench.started), bench.workers.listening) == (2, 1)


async def test_one_that_hangs_is_replaced() -> None:
    async with opened(2) as bench:
        hanging, well = bench.started
        for _ in range(40):
            well.say(CountsReported(counted(1)))
            await asyncio.sleep(1)
        assert hanging.is_killed
        assert not well.is_killed
        assert [worker.number for worker in bench.started] == [0, 1, 0]


async def test_what_workers_observe_is_taken_once_and_what_is_given_up_is_told_to_all() -> None:
    async with opened() as bench:
        seen = [Observation("r", "id", False, number, False, 0.1) for number in range(3)]
        bench.started[0].say(ArmsObserved(seen[:2]))
        bench.started[1].say(ArmsObserved(seen[2:]))
        await settle()
        assert bench.workers.take_observed() == seen
        assert bench.workers.take_observed() == []
        bench.workers.give_up("id")
        assert [worker.told[-1] for worker in bench.started] == [RolloutGivenUp("id")] * 2
