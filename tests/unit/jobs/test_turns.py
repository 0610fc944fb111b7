from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from control_plane.jobs.turns import Turns


class Gate:
    most = 1


@asynccontextmanager
async def waiting(turns: Turns, count: int, begun: list[int]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """So many tasks that want a turn each and keep it."""

    async def take(number: int) -> None:
        async with turns.turn():
            begun.append(number)
            await asyncio.Event().wait()

    tasks = [asyncio.get_running_loop().create_task(take(number)) for number in range(count)]
    await asyncio.sleep(0.01)
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_turns_come_in_order_and_as_many_as_may_be_then() -> None:
    gate, begun = Gate(), list[int]()
    async with waiting(Turns(lambda: gate.most), 5, begun) as tasks:
        assert begun == [0]
        gate.most = 3
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        assert begun == [0, 1, 2, 3]
        gate.most = 1
        tasks[1].cancel()
        tasks[2].cancel()
        await asyncio.sleep(0.01)
        assert begun == [0, 1, 2, 3]
        tasks[3].cancel()
        await asyncio.sleep(0.01)
        assert begun == [0, 1, 2, 3, 4]


async def test_who_leaves_takes_no_turn() -> None:
    begun = list[int]()
    turns = Turns(lambda: 1)
    async with waiting(turns, 4, begun) as tasks:
        tasks[1].cancel()  # before its turn
        await asyncio.sleep(0.01)
        tasks[2].cancel()
        tasks[0].cancel()  # ends its own before the one that was cancelled in the same moment has gone
        await asyncio.sleep(0.01)
        assert begun == [0, 3]


async def test_a_turn_that_comes_just_as_its_taker_leaves_is_the_next_ones() -> None:
    begun = list[int]()
    async with waiting(Turns(lambda: 1), 3, begun) as tasks:
        tasks[0].cancel()
        await asyncio.sleep(0)  # its turn has ended, and is the second one's, which has not run
        tasks[1].cancel()
        await asyncio.sleep(0.01)
        assert begun == [0, 2]


async def test_after_all_have_left_turns_are_free() -> None:
    turns, begun = Turns(lambda: 1), list[int]()
    async with waiting(turns, 3, begun):
        pass
    async with asyncio.timeout(5.0), turns.turn():
        pass
