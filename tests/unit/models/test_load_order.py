from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from control_plane.core.errors import ModelLoadFailed
from control_plane.models.load_order import after_steps
from tests.aio import settle

CLOSURES = {"all": ["step", "inner", "other", "all"], "inner": ["step", "inner"], "other": ["other"], "step": ["step"]}


class Loads:
    """Loads that end when a test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.fails: set[str] = set()
        self.may_end: dict[str, asyncio.Event] = {}

    async def load(self, name: str) -> None:
        self.begun.append(name)
        await self.may_end.setdefault(name, asyncio.Event()).wait()
        if name in self.fails:
            raise ModelLoadFailed(name)

    async def end(self, name: str) -> None:
        self.may_end[name].set()
        await settle()


async def test_a_model_is_loaded_by_its_own_name_before_what_needs_it_and_others_at_once() -> None:
    loads = Loads()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(after_steps(CLOSURES, loads.load))
        await settle()
        assert loads.begun == ["other", "step"]
        await loads.end("step")
        assert loads.begun == ["other", "step", "inner"]
        await loads.end("inner")
        await loads.end("other")
        assert loads.begun == ["other", "step", "inner", "all"]
        await loads.end("all")


async def test_what_fails_holds_nothing_up_and_is_told() -> None:
    loads = Loads()
    loads.fails = {"step"}
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(after_steps(CLOSURES, loads.load))
        await settle()
        for name in ("step", "inner", "other", "all"):
            await loads.end(name)
    assert [type(result) for result in task.result()] == [type(None), type(None), type(None), ModelLoadFailed]


@pytest.mark.parametrize(
    "closures",
    [
        pytest.param({"one": ["two", "one"], "two": ["one", "two"]}, id="a circle"),
        pytest.param({"one": ["a step that nobody wants by its name", "one"], "two": ["two"]}, id="a step that is loaded along"),
    ],
)
async def test_nobody_waits_for_what_does_not_come(closures: Mapping[str, Sequence[str]]) -> None:
    async def load(_: str) -> None:
        """Succeed."""

    async with asyncio.timeout(30):
        assert await after_steps(closures, load) == [None, None]
