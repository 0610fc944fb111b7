from __future__ import annotations

import asyncio

import pytest

from control_plane.concurrency.task_owner import TaskOwner
from control_plane.core.errors import UpstreamUnavailable
from tests.aio import settle

FOR_EVER_S = 1000.0


async def test_tasks_run_until_the_owner_is_cancelled() -> None:
    owner = TaskOwner("nothing is done")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(owner.run())
        await settle()
        short, long = owner.create_task(asyncio.sleep(0, "done"), name="short"), owner.create_task(asyncio.sleep(FOR_EVER_S), name="long")
        assert owner.is_open
        assert await short == "done"
        running.cancel()
    assert long.cancelled()
    assert long.get_name() == "long"


async def test_before_the_start_and_after_the_end_there_are_none() -> None:
    owner = TaskOwner("nothing is done")
    for _ in range(2):
        assert not owner.is_open
        with pytest.raises(UpstreamUnavailable, match=r"^nothing is done while the gateway starts or stops; try again shortly$"):
            owner.create_task(asyncio.sleep(0), name="early or late")
        async with owner.open():
            pass


async def test_while_the_last_ones_end_no_new_ones_begin() -> None:
    owner, may_end = TaskOwner("nothing is done"), asyncio.Event()

    async def ask_on_cancellation() -> None:
        try:
            await asyncio.sleep(FOR_EVER_S)
        finally:
            with pytest.raises(UpstreamUnavailable):
                owner.create_task(may_end.wait(), name="late")

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(owner.run())
        await settle()
        last = owner.create_task(ask_on_cancellation(), name="last")
        await settle()
        running.cancel()
    assert last.cancelled()


async def test_work_goes_on_when_who_asked_for_it_leaves() -> None:
    owner, may_end, done = TaskOwner("nothing is done"), asyncio.Event(), list[str]()

    async def work() -> str:
        await may_end.wait()
        done.append("done")
        return "done"

    with pytest.raises(UpstreamUnavailable):
        await owner.run_shielded(work, name="early")
    async with owner.open():
        leaving, staying = (asyncio.get_running_loop().create_task(owner.run_shielded(work, name="work")) for _ in range(2))
        await settle()
        leaving.cancel()
        await settle()
        may_end.set()
        assert await staying == "done"
    assert leaving.cancelled()
    assert done == ["done", "done"]


async def test_a_defect_in_one_ends_the_others_and_the_owner() -> None:
    owner = TaskOwner("nothing is done")

    async def fail() -> None:
        raise RuntimeError("a bug")

    running = asyncio.get_running_loop().create_task(owner.run())
    await settle()
    other = owner.create_task(asyncio.sleep(FOR_EVER_S), name="other")
    owner.create_task(fail(), name="failing")
    with pytest.raises(ExceptionGroup) as caught:
        await running
    assert caught.group_contains(RuntimeError, match="a bug")
    assert other.cancelled()
