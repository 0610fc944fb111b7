"""What a model's limiter expects of a request that comes now."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.admission.concurrency_limiter import ConcurrencyLimiter, SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from tests.unit.admission.concurrency_limiter_bench import Bench, give

pytestmark = pytest.mark.virtual_time


async def test_nothing_is_expected_of_a_model_that_has_answered_nothing() -> None:
    async with asyncio.TaskGroup() as tasks:
        assert Bench(tasks).slots.answer_s(1.0) == 0.0


async def test_an_idle_model_takes_what_it_took_alone_and_by_the_cost() -> None:
    slots = ConcurrencyLimiter(SlotLimits(2, 2), QueueLimits(), asyncio.get_running_loop().time)
    for _ in range(3):
        assert slots.try_acquire("a")
        give(slots, 0.5)
    await asyncio.sleep(0.2)  # the first answer is in doubt at first
    assert slots.answer_s(1.0) == pytest.approx(0.5)
    assert slots.answer_s(4.0) == pytest.approx(2.0)


async def test_a_busy_one_takes_longer_by_what_waits_before() -> None:
    async with asyncio.TaskGroup() as tasks:
        bench = Bench(tasks)
        await bench.knows(0.5)
        alone = bench.slots.answer_s(1.0)
        waiting = [await bench.waiting("a") for _ in range(4)]
        assert bench.slots.answer_s(1.0) > alone + 4 * 0.5
        for task in waiting:
            task.cancel()


async def test_what_is_in_doubt_after_a_stall_is_not_expected() -> None:
    slots = ConcurrencyLimiter(SlotLimits(2, 2), QueueLimits(), asyncio.get_running_loop().time)
    for held_s in (0.5, 0.5, 100.0):
        assert slots.try_acquire("a")
        give(slots, held_s)
    assert slots.answer_s(1.0) == 0.0


async def test_a_model_that_has_fallen_silent_takes_at_least_as_long_as_it_has_been() -> None:
    slots = ConcurrencyLimiter(SlotLimits(8, 8), QueueLimits(), asyncio.get_running_loop().time)
    for _ in range(3):
        assert slots.try_acquire("a")
        give(slots, 0.1)
    await asyncio.sleep(100.0)
    assert slots.answer_s(1.0) == pytest.approx(0.1), "it has nothing to end"
    for _ in range(2):
        assert slots.try_acquire("a")
    await asyncio.sleep(5.0)
    assert slots.answer_s(1.0) == pytest.approx(5.0)
    give(slots, 0.1)
    assert slots.answer_s(1.0) < 1.0
