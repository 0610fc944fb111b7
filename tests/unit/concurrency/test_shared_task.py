from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from control_plane.concurrency.shared_task import join, outcome
from control_plane.core.errors import GatewayStopping, ModelLoadFailed
from tests.aio import settle


class Work:
    """Work that blocks until the test releases it, and then returns or raises what the test says."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.may_end = asyncio.Event()
        self.error: Exception | None = None
        self.task = tasks.create_task(outcome(self._do))

    async def _do(self) -> str:
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return "done"


@asynccontextmanager
async def shared_by_two() -> AsyncIterator[tuple[Work, asyncio.Task[str], asyncio.Task[str]]]:
    async with asyncio.TaskGroup() as tasks:
        work = Work(tasks)
        first, second = (asyncio.get_running_loop().create_task(join(work.task)) for _ in range(2))
        await settle()
        yield work, first, second
        await asyncio.wait([first, second])


async def test_all_who_wait_get_the_result() -> None:
    async with shared_by_two() as (work, first, second):
        work.may_end.set()
        assert (await first, await second) == ("done", "done")


async def test_all_who_wait_get_the_exception_and_the_tasks_owner_does_not() -> None:
    async with shared_by_two() as (work, first, second):
        work.error = ModelLoadFailed("bad weights")
        work.may_end.set()
        for each in (first, second):
            with pytest.raises(ModelLoadFailed, match="bad weights"):
                await each


async def test_who_leaves_ends_neither_the_work_nor_the_others_waiting() -> None:
    async with shared_by_two() as (work, first, second):
        first.cancel()
        await settle()
        assert first.cancelled()
        work.may_end.set()
        assert await second == "done"


async def test_a_task_that_is_cancelled_by_its_owner_is_told_as_an_error() -> None:
    async with shared_by_two() as (work, first, second):
        work.task.cancel()
        for each in (first, second):
            with pytest.raises(GatewayStopping, match="the gateway is stopping"):
                await each


async def test_who_is_cancelled_together_with_the_task_sees_a_cancellation() -> None:
    async with shared_by_two() as (work, first, second):
        work.task.cancel()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(GatewayStopping):
            await second
