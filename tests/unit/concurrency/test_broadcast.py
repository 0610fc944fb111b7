from __future__ import annotations

import asyncio

import pytest

from control_plane.concurrency.broadcast import Broadcast
from tests.aio import settle

FOR_EVER_S = 1000.0


async def test_all_who_wait_are_woken_and_who_comes_later_waits_for_the_next_time() -> None:
    broadcast = Broadcast()
    async with asyncio.TaskGroup() as tasks:
        early = [tasks.create_task(broadcast.wait(FOR_EVER_S)) for _ in range(2)]
        await settle()
        broadcast.wake()
        late = tasks.create_task(broadcast.wait(FOR_EVER_S))
        await settle()
        assert [task.done() for task in (*early, late)] == [True, True, False]
        broadcast.wake()


@pytest.mark.virtual_time
async def test_a_wait_ends_with_its_time() -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await Broadcast().wait(FOR_EVER_S)
    assert loop.time() == pytest.approx(began_s + FOR_EVER_S)


async def test_a_task_that_is_cancelled_in_the_turn_in_which_it_is_woken_is_cancelled() -> None:
    broadcast = Broadcast()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(broadcast.wait(FOR_EVER_S))
        await settle()
        broadcast.wake()
        waiting.cancel()
    assert waiting.cancelled()
