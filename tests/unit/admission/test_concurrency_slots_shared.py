"""Slots of a model that several tenants use: how many there are, and who goes by."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.admission.concurrency_slots import ModelSlots, SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from tests.aio import run_in_virtual_time, settle
from tests.unit.admission.test_concurrency_slots import Task, claim, give


class TestSharing:
    """One tenant alone has four slots, several together two."""

    def test_a_second_tenant_makes_them_fewer_for_a_while(self) -> None:
        now_s = 0.0
        slots = ModelSlots(SlotLimits(alone=4, shared=2), QueueLimits(), lambda: now_s)

        assert [slots.take_at_once("a") for _ in range(3)] == [True, True, True]
        assert not slots.take_at_once("b")  # three are taken, and two are what there is now
        assert not slots.take_at_once("a")
        for _ in range(2):
            give(slots)
        assert slots.take_at_once("b")
        assert not slots.take_at_once("b")
        now_s = 10.1
        assert [slots.take_at_once("b") for _ in range(3)] == [True, True, False]

    def test_who_waits_is_given_no_slot_while_more_are_taken_than_there_are(self) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            slots = ModelSlots(SlotLimits(alone=4, shared=2), QueueLimits(), loop.time)
            assert [slots.take_at_once("a") for _ in range(4)] == [True] * 4
            assert not slots.take_at_once("b")
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(slots.take(claim("b"), loop.time() + 5.0))
                await settle()
                for _ in range(2):
                    give(slots)
                    await settle()
                    assert not waiting.done()
                give(slots)
                assert await waiting is None

        run_in_virtual_time(main())

    def test_when_it_is_over_one_slot_that_is_given_back_lets_all_that_fit_in(self) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            slots = ModelSlots(SlotLimits(alone=4, shared=1), QueueLimits(), loop.time)
            assert slots.take_at_once("a")
            assert not slots.take_at_once("b")
            async with asyncio.TaskGroup() as tasks:
                waiting = [tasks.create_task(slots.take(claim("a"), loop.time() + 50.0)) for _ in range(6)]
                await asyncio.sleep(11.0)
                assert not slots.take_at_once("b")  # not before those who wait
                give(slots)
                await settle()
                assert [each.done() for each in waiting] == [True] * 4 + [False] * 2
                for _ in range(2):
                    give(slots)

        run_in_virtual_time(main())


class TestPassing:
    """Four slots, all taken by `loud`, of whom one more waits; eight may be taken at a time."""

    async def flooded(self, tasks: asyncio.TaskGroup, limits: SlotLimits) -> tuple[ModelSlots, Task]:
        slots = ModelSlots(limits, QueueLimits(), asyncio.get_running_loop().time)
        assert slots.take_at_once("quiet")
        give(slots)
        assert [slots.take_at_once("l") for _ in range(5)] == [True] * 4 + [False]
        waiting = tasks.create_task(slots.take(claim("l"), 1000.0))
        await settle()
        return slots, waiting

    async def pass_by(self, slots: ModelSlots, tenant: str = "quiet") -> bool:
        """Whether it has its slot without waiting."""
        assert not slots.take_at_once(tenant)
        task = asyncio.get_running_loop().create_task(slots.take(claim(tenant), 1000.0))
        await settle()
        if not task.done():
            task.cancel()
            await settle()
            return False
        return task.result() is None

    def test_a_tenant_that_keeps_to_its_share_need_not_wait(self) -> None:
        async def main() -> None:
            async with asyncio.TaskGroup() as tasks:
                slots, waiting = await self.flooded(tasks, SlotLimits(alone=64, shared=4))
                assert [await self.pass_by(slots) for _ in range(4)] == [True, True, False, False]
                assert not waiting.done()
                for _ in range(2):
                    give(slots)
                    await settle()
                    assert not waiting.done()  # six were taken, and four are what there is
                give(slots)
                assert await waiting is None
                for _ in range(4):
                    give(slots)
                assert slots.are_idle

        run_in_virtual_time(main())

    @pytest.mark.parametrize(("alone", "passed"), [(64, 4), (6, 2), (4, 0)])
    def test_no_more_go_by_than_there_are_slots_and_one_tenant_alone_would_have(self, alone: int, passed: int) -> None:
        async def main() -> None:
            async with asyncio.TaskGroup() as tasks:
                slots, waiting = await self.flooded(tasks, SlotLimits(alone=alone, shared=4))
                assert sum([await self.pass_by(slots, f"quiet {number}") for number in range(10)]) == passed
                waiting.cancel()

        run_in_virtual_time(main())

    def test_when_nobody_shares_any_more_nobody_goes_by(self) -> None:
        async def main() -> None:
            async with asyncio.TaskGroup() as tasks:
                slots, waiting = await self.flooded(tasks, SlotLimits(alone=64, shared=4))
                await asyncio.sleep(11.0)
                late = tasks.create_task(slots.take(claim("quiet"), 1000.0))
                await settle()
                assert not late.done()
                give(slots)
                assert await waiting is await late is None

        run_in_virtual_time(main())


class TestLearning:
    """Sixteen slots while shared, of a model that does the same with fewer; the flood and its like ask again at once."""

    async def saturate(self, slots: ModelSlots, seconds: float, *, tenants: str = "ab") -> None:
        loop = asyncio.get_running_loop()
        model, until_s = asyncio.Semaphore(1), loop.time() + seconds

        async def caller(tenant: str) -> None:
            while loop.time() < until_s:
                if not slots.take_at_once(tenant):
                    await slots.take(claim(tenant), loop.time() + 1000.0)
                async with model:
                    await asyncio.sleep(0.005)
                slots.give(tenant, cost=1.0, held_s=0.1)

        async with asyncio.TaskGroup() as tasks:
            for number in range(150):
                tasks.create_task(caller(tenants[number % len(tenants)]))

    def test_a_shared_model_comes_down_to_what_it_needs_and_one_that_is_not_does_not(self) -> None:
        async def main() -> None:
            for tenants, expected in ("ab", 2), ("a", 16):
                slots = ModelSlots(SlotLimits(alone=64, shared=16), QueueLimits(), asyncio.get_running_loop().time)
                await self.saturate(slots, 8.0, tenants=tenants)
                assert slots._shared.slots == expected

        run_in_virtual_time(main())

    def test_what_was_being_tried_ends_when_nobody_waits(self) -> None:
        async def main() -> None:
            slots = ModelSlots(SlotLimits(alone=64, shared=16), QueueLimits(), asyncio.get_running_loop().time)
            async with asyncio.TaskGroup() as tasks:
                load = tasks.create_task(self.saturate(slots, 1.0))
                while slots._shared.slots == 16:
                    assert not load.done()
                    await asyncio.sleep(0.1)
            assert slots.are_idle
            assert not slots._shared.is_busy
            assert slots._shared.slots == 16

        run_in_virtual_time(main())
