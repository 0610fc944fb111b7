from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from control_plane.core.errors import ModelLoadFailed, UpstreamUnavailable
from control_plane.models.change_queue import ChangeQueue
from tests.aio import settle


class Bench:
    """Changes whose work blocks until the test releases it; `log` records what began and ended."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.changes = ChangeQueue()
        self.owner = tasks.create_task(self.changes.run())
        self.log: list[str] = []
        self.may_end = asyncio.Event()
        self._tasks = tasks

    def work(self, label: str, error: Exception | None = None) -> Callable[[], Awaitable[None]]:
        async def do() -> None:
            self.log.append(f"{label} begins")
            await self.may_end.wait()
            self.log.append(f"{label} ends")
            if error is not None:
                raise error

        return do

    def ask(self, name: str, intent: str, error: Exception | None = None) -> asyncio.Task[str]:
        """Return the outcome of a change as text."""

        async def main() -> str:
            try:
                await self.changes.carry_out(name, intent, self.work(f"{intent} {name}", error))
            except Exception as exc:
                return f"{type(exc).__name__}: {exc}"
            return "done"

        return self._tasks.create_task(main())


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    async with asyncio.TaskGroup() as tasks:
        made = Bench(tasks)
        await settle()
        yield made
        made.owner.cancel()


async def test_the_same_at_the_same_time_is_done_once_and_both_are_told() -> None:
    async with bench() as running:
        error = ModelLoadFailed("bad weights")
        waiters = [running.ask("a", "load", error), running.ask("a", "load", error)]
        await settle()
        assert running.log == ["load a begins"]
        running.may_end.set()
        assert [await waiter for waiter in waiters] == ["ModelLoadFailed: bad weights"] * 2


async def test_another_of_the_same_model_waits_for_the_one_before_also_when_that_fails() -> None:
    async with bench() as running:
        waiters = [running.ask("a", "load", ModelLoadFailed("x")), running.ask("a", "unload"), running.ask("a", "load")]
        await settle()
        assert running.log == ["load a begins"]
        running.may_end.set()
        assert [await waiter for waiter in waiters] == ["ModelLoadFailed: x", "done", "done"]
        assert [line for line in running.log if "begins" in line] == ["load a begins", "unload a begins", "load a begins"]


async def test_models_do_not_wait_for_each_other() -> None:
    async with bench() as running:
        waiters = [running.ask("a", "load"), running.ask("b", "load")]
        await settle()
        assert running.log == ["load a begins", "load b begins"]
        running.may_end.set()
        assert [await waiter for waiter in waiters] == ["done", "done"]


async def test_a_caller_that_leaves_ends_neither_the_work_nor_the_others_waiting() -> None:
    async with bench() as running:
        leaving, staying = running.ask("a", "load"), running.ask("a", "load")
        await settle()
        leaving.cancel()
        await settle()
        assert leaving.cancelled()
        running.may_end.set()
        assert await staying == "done"
        assert running.log == ["load a begins", "load a ends"]


async def test_after_it_has_ended_the_same_is_done_anew() -> None:
    async with bench() as running:
        running.may_end.set()
        assert await running.ask("a", "load") == "done"
        assert await running.ask("a", "load") == "done"
        assert running.log.count("load a begins") == 2


async def test_a_defect_reaches_the_caller_and_ends_nobody_elses_work() -> None:
    async with bench() as running:
        failing, other = running.ask("a", "load", RuntimeError("a bug")), running.ask("b", "load")
        await settle()
        running.may_end.set()
        assert await failing == "RuntimeError: a bug"
        assert await other == "done"


async def test_at_the_end_what_is_left_is_cancelled_and_told_as_such() -> None:
    async with bench() as running:
        waiters = [running.ask("a", "load"), running.ask("a", "unload")]
        await settle()
        running.owner.cancel()
        assert [await waiter for waiter in waiters] == ["GatewayStopping: the gateway is stopping; try again shortly"] * 2
        assert running.log == ["load a begins"]


async def test_before_the_start_there_are_none() -> None:
    async def work() -> None:
        pytest.fail("nobody owns this")

    with pytest.raises(UpstreamUnavailable, match="starts or stops"):
        await ChangeQueue().carry_out("a", "load", work)
