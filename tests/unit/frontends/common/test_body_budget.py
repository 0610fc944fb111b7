from __future__ import annotations

import asyncio
import random

import pytest

from control_plane.core.errors import Overloaded
from control_plane.frontends.common.body_budget import BodyBudget
from tests.aio import run, settle


def start(budget: BodyBudget, size_bytes: int, timeout_s: float = 60.0) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(budget.acquire(size_bytes, timeout_s))


def test_takes_what_is_free_and_nothing_more() -> None:
    budget = BodyBudget(100)
    assert [budget.try_acquire(size) for size in (60, 41, 40, 1)] == [True, False, True, False]
    assert budget.held_bytes == 100
    budget.release(40)
    assert budget.try_acquire(40)


async def test_who_waits_gets_it_when_it_is_given_back() -> None:
    budget = BodyBudget(100)
    await budget.acquire(80, 60.0)
    waiting = start(budget, 50)
    await settle()
    assert not waiting.done()
    budget.release(80)
    await waiting
    assert budget.held_bytes == 50


async def test_nothing_overtakes_a_large_one_that_waits() -> None:
    budget = BodyBudget(100)
    await budget.acquire(60, 60.0)
    large, small = start(budget, 90), start(budget, 10)
    await settle()
    assert not budget.try_acquire(1)
    assert not small.done()
    budget.release(60)
    await large
    await small
    assert budget.held_bytes == 100


@pytest.mark.virtual_time
async def test_after_its_time_it_is_refused_and_those_behind_it_are_served() -> None:
    budget = BodyBudget(100)
    await budget.acquire(60, 60.0)
    large, small = start(budget, 90, timeout_s=1.0), start(budget, 10)
    with pytest.raises(Overloaded, match="within 1 s"):
        await large
    await small
    assert budget.held_bytes == 70


def test_more_than_there_is_at_all_is_refused_at_once() -> None:
    budget = BodyBudget(100)
    with pytest.raises(Overloaded, match="TIDEGATE_MAX_BUFFERED_BYTES"):
        run(budget.acquire(101, 60.0))


@pytest.mark.parametrize("given_first", [True, False], ids=["as it is granted", "before it is granted"])
async def test_who_leaves_while_waiting_holds_nothing(given_first: bool) -> None:
    budget = BodyBudget(100)
    await budget.acquire(100, 60.0)
    leaving, staying = start(budget, 100), start(budget, 100)
    await settle()
    if given_first:
        budget.release(100)
    leaving.cancel()
    if not given_first:
        budget.release(100)
    await asyncio.wait([leaving])
    await staying
    assert budget.held_bytes == 100


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.virtual_time
async def test_whatever_the_order_of_events_all_is_given_back(seed: int) -> None:
    chance, budget = random.Random(seed), BodyBudget(1000)

    async def use() -> None:
        size = chance.randint(1, 1000)
        try:
            await budget.acquire(size, chance.choice([0.5, 3.0, 60.0]))
        except Overloaded:
            return
        try:
            assert budget.held_bytes <= 1000
            await asyncio.sleep(chance.random())
        finally:
            budget.release(size)

    users = [asyncio.get_running_loop().create_task(use()) for _ in range(60)]
    for user in chance.sample(users, 20):
        await asyncio.sleep(chance.random() / 10)
        user.cancel()
    await asyncio.wait(users)
    assert budget.held_bytes == 0
    assert budget.try_acquire(1000)
