"""Work in slices: what it costs everybody else, whoever has much of it."""

from __future__ import annotations

import asyncio
import time

import pytest

from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import InvalidRequest

_SLICE_S = 0.002


def _busy(slices: int, *, ran: list[str] | None = None, name: str = "") -> Steps[str]:
    for _ in range(slices):
        began_s = time.thread_time()
        while time.thread_time() - began_s < _SLICE_S:
            pass
        if ran is not None:
            ran.append(name)
        yield
    return name


async def test_work_without_a_pause_is_done_in_this_turn() -> None:
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1

    asyncio.get_running_loop().call_soon(count)
    assert await run_in_steps(_busy(0, name="done")) == "done"
    assert turns == 0


async def test_however_many_have_work_a_turn_takes_a_slice_or_two_of_all() -> None:
    slices_by_turn, ran = list[int](), list[str]()

    def look() -> None:
        slices_by_turn.append(len(ran) - sum(slices_by_turn))
        if len(ran) < 20 * 5:
            asyncio.get_running_loop().call_soon(look)

    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(run_in_steps(_busy(5, ran=ran, name=f"{number}"))) for number in range(20)]
        await asyncio.sleep(0)  # each has run its first slice
        assert len(ran) == 20
        slices_by_turn.append(20)
        look()
    assert [task.result() for task in working] == [f"{number}" for number in range(20)]
    assert max(slices_by_turn[1:]) <= 5, "a quarter of a turn, and ten milliseconds at most"
    assert ran[20:40] == [f"{number}" for number in range(20)], "by turns"


async def test_what_it_raises_is_the_callers() -> None:
    def fails() -> Steps[None]:
        yield
        raise InvalidRequest("wrong")

    with pytest.raises(InvalidRequest, match="wrong"):
        await run_in_steps(fails())


async def test_the_work_of_who_has_left_is_not_gone_on_with() -> None:
    ran = list[str]()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_in_steps(_busy(10_000, ran=ran, name="left"))
    slices = len(ran)
    assert await run_in_steps(_busy(3, name="after it")) == "after it"
    assert len(ran) == slices < 10_000
