"""Slots of a model that several tenants use: how many there are, and which requests may go beyond that
number.
"""

from __future__ import annotations

import asyncio

import pytest

from control_plane.admission.concurrency_limiter import ConcurrencyLimiter, SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from tests.aio import settle
from tests.unit.admission.concurrency_limiter_bench import Task, give, release, ticket

pytestmark = pytest.mark.virtual_time


class TestSharing:
    """Model with four slots while one tenant uses it, and two while several do."""

    def test_a_second_tenant_makes_them_fewer_for_a_while(self) -> None:
        now_s = 0.0
        slots = ConcurrencyLimiter(SlotLimits(alone=4, shared=2), QueueLimits(), lambda: now_s)

        assert [slots.try_acquire("a") for _ in range(3)] == [True, True, True]
        assert not slots.try_acquire("b")  # three are taken, and two are what there is now
        assert not slots.try_acquire("a")
        for _ in range(2):
            give(slots)
        assert slots.try_acquire("b")
        assert not slots.try_acquire("b")
        now_s = 10.1
        assert [slots.try_acquire("b") for _ in range(3)] == [True, True, False]

    async def test_who_waits_is_given_no_slot_while_more_are_taken_than_there_are(self) -> None:
        loop = asyncio.get_running_loop()
        slots = ConcurrencyLimiter(SlotLimits(alone=4, shared=2), QueueLimits(), loop.time)
        assert [slots.try_acquire("a") for _ in range(4)] == [True] * 4
        assert not slots.try_acquire("b")
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(slots.acquire(ticket("b"), loop.time() + 5.0))
            await settle()
            for _ in range(2):
                give(slots)
                await settle()
                assert not waiting.done()
            give(slots)
            assert await waiting is None

    async def test_when_it_is_over_one_slot_that_is_given_back_lets_all_that_fit_in(self) -> None:
        loop = asyncio.get_running_loop()
        slots = ConcurrencyLimiter(SlotLimits(alone=4, shared=1), QueueLimits(), loop.time)
        assert slots.try_acquire("a")
        assert not slots.try_acquire("b")
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(slots.acquire(ticket("a"), loop.time() + 50.0)) for _ in range(6)]
            await asyncio.sleep(11.0)
            assert not slots.try_acquire("b")  # not before those who wait
            give(slots)
            await settle()
            assert [each.done() for each in waiting] == [True] * 4 + [False] * 2
            for _ in range(2):
                give(slots)


class TestPassing:
    """Model with four slots, all taken by `loud`, of which one more request waits; eight may be taken at a
    time.
    """

    async def flooded(self, tasks: asyncio.TaskGroup, limits: SlotLimits) -> tuple[ConcurrencyLimiter, Task]:
        slots = ConcurrencyLimiter(limits, QueueLimits(), asyncio.get_running_loop().time)
        assert slots.try_acquire("quiet")
        give(slots)
        assert [slots.try_acquire("l") for _ in range(5)] == [True] * 4 + [False]
        waiting = tasks.create_task(slots.acquire(ticket("l"), 1000.0))
        await settle()
        return slots, waiting

    async def bypass(self, slots: ConcurrencyLimiter, tenant: str = "quiet") -> bool:
        """Whether the request gets its slot without waiting."""
        assert not slots.try_acquire(tenant)
        task = asyncio.get_running_loop().create_task(slots.acquire(ticket(tenant), 1000.0))
        await settle()
        if not task.done():
            task.cancel()
            await settle()
            return False
        return task.result() is None

    async def test_a_tenant_that_keeps_to_its_share_need_not_wait(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            slots, waiting = await self.flooded(tasks, SlotLimits(alone=64, shared=4))
            assert [await self.bypass(slots) for _ in range(4)] == [True, True, False, False]
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

    @pytest.mark.parametrize(("alone", "passed"), [(64, 4), (6, 2), (4, 0)])
    async def test_no_more_go_by_than_there_are_slots_and_one_tenant_alone_would_have(self, alone: int, passed: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            slots, waiting = await self.flooded(tasks, SlotLimits(alone=alone, shared=4))
            assert sum([await self.bypass(slots, f"quiet {number}") for number in range(10)]) == passed
            waiting.cancel()

    async def test_when_nobody_shares_any_more_nobody_goes_by(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            slots, waiting = await self.flooded(tasks, SlotLimits(alone=64, shared=4))
            await asyncio.sleep(11.0)
            late = tasks.create_task(slots.acquire(ticket("quiet"), 1000.0))
            await settle()
            assert not late.done()
            give(slots)
            assert await waiting is await late is None


class TestLearning:
    """The model has sixteen slots while shared and the same throughput with fewer; callers send again at once
    when answered.
    """

    async def saturate(self, slots: ConcurrencyLimiter, seconds: float, *, tenants: str = "ab") -> None:
        loop = asyncio.get_running_loop()
        model, until_s = asyncio.Semaphore(1), loop.time() + seconds

        async def caller(tenant: str) -> None:
            while loop.time() < until_s:
                if not slots.try_acquire(tenant):
                    await slots.acquire(ticket(tenant), loop.time() + 1000.0)
                async with model:
                    await asyncio.sleep(0.005)
                release(slots, tenant, held_s=0.1)

        async with asyncio.TaskGroup() as tasks:
            for number in range(150):
                tasks.create_task(caller(tenants[number % len(tenants)]))

    async def test_a_shared_model_comes_down_to_what_it_needs_and_one_that_is_not_does_not(self) -> None:
        for tenants, expected in ("ab", 2), ("a", 16):
            slots = ConcurrencyLimiter(SlotLimits(alone=64, shared=16), QueueLimits(), asyncio.get_running_loop().time)
            await self.saturate(slots, 8.0, tenants=tenants)
            assert slots._shared.slots == expected

    async def test_what_was_being_tried_ends_when_nobody_waits(self) -> None:
        slots = ConcurrencyLimiter(SlotLimits(alone=64, shared=16), QueueLimits(), asyncio.get_running_loop().time)
        async with asyncio.TaskGroup() as tasks:
            load = tasks.create_task(self.saturate(slots, 1.0))
            while slots._shared.slots == 16:
                assert not load.done()
                await asyncio.sleep(0.1)
        assert slots.are_idle
        assert not slots._shared.is_busy
        assert slots._shared.slots == 16
