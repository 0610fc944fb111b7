from __future__ import annotations

import asyncio

import pytest

from control_plane.concurrency.weighted_semaphore import WeightedSemaphore
from tests.aio import settle

pytestmark = pytest.mark.virtual_time


async def test_units_are_taken_without_waiting_while_they_are_free() -> None:
    semaphore = WeightedSemaphore(3)
    assert [semaphore.try_acquire(2), semaphore.try_acquire(2), semaphore.try_acquire()] == [True, False, True]
    assert (semaphore.total, semaphore.free) == (3, 0)
    semaphore.release(2)
    await semaphore.acquire(2, deadline_s=0.0)
    assert semaphore.free == 0


async def test_a_unit_of_each_of_two_is_taken_or_of_neither() -> None:
    all_of_them, some = WeightedSemaphore(2), WeightedSemaphore(1)
    assert all_of_them.try_acquire_both(some)
    assert not all_of_them.try_acquire_both(some)
    assert (all_of_them.free, some.free) == (1, 0)
    assert all_of_them.try_acquire()
    all_of_them.release_both(some)
    assert (all_of_them.free, some.free) == (1, 1)


async def test_who_waits_for_either_of_two_is_not_overtaken_and_is_let_in() -> None:
    for waits_for in (0, 1):
        pair = WeightedSemaphore(2), WeightedSemaphore(2)
        assert pair[0].try_acquire_both(pair[1])
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(pair[waits_for].acquire(2, deadline_s=100.0))
            await settle()
            assert not pair[0].try_acquire_both(pair[1])
            pair[0].release_both(pair[1])
            await waiting


async def test_nothing_overtakes_a_large_one_and_those_behind_one_that_gives_up_are_served() -> None:
    semaphore = WeightedSemaphore(3)
    assert semaphore.try_acquire(2)
    async with asyncio.TaskGroup() as tasks:
        large = tasks.create_task(_late(semaphore, 3, deadline_s=1.0))
        await settle()
        small = tasks.create_task(semaphore.acquire(1, deadline_s=100.0))
        await settle()
        assert not semaphore.try_acquire()
        assert not small.done()
        await large
        await small
    assert semaphore.free == 0


async def _late(semaphore: WeightedSemaphore, units: int, *, deadline_s: float) -> None:
    with pytest.raises(TimeoutError):
        await semaphore.acquire(units, deadline_s=deadline_s)
