from __future__ import annotations

import asyncio

import pytest

from control_plane.cache.adapters.loop_timeout import LoopTimeout
from tests.aio import hold_up

pytestmark = pytest.mark.virtual_time


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def limited(timeout_s: float, *, held_up_s: float = 0.0, takes_s: float) -> None:
    async with LoopTimeout(timeout_s):
        hold_up(held_up_s)
        await asyncio.sleep(takes_s)


async def test_it_ends_what_takes_longer() -> None:
    with pytest.raises(TimeoutError):
        await limited(2.0, takes_s=3.0)
    assert now_s() == pytest.approx(2.0)


async def test_what_is_quicker_is_left_alone_and_nothing_comes_later() -> None:
    await limited(2.0, takes_s=1.9)
    await asyncio.sleep(10.0)
    with pytest.raises(ZeroDivisionError):
        async with LoopTimeout(2.0):
            _ = 1 / 0


async def test_a_pause_of_the_process_takes_half_of_it_at_most() -> None:
    await limited(2.0, held_up_s=60.0, takes_s=0.9)
    with pytest.raises(TimeoutError):
        await limited(2.0, held_up_s=60.0, takes_s=1.1)


async def test_cancelling_goes_through() -> None:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(limited(2.0, takes_s=1.5))
        await asyncio.sleep(1.0)
        task.cancel()
    assert task.cancelled()
