"""A node's look at Triton's index: read again whenever something may have changed, and otherwise seldom."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.model import ModelState, ModelVersion
from control_plane.node.settled_index import READ_EVERY_S, SettledIndex
from tests.aio import settle

READY, LOADING, UNLOADING, UNAVAILABLE = ModelState.READY, ModelState.LOADING, ModelState.UNLOADING, ModelState.UNAVAILABLE


class Triton:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.models = {"a": READY, "b": UNAVAILABLE}
        self.reads = 0
        self.index = SettledIndex(self.read, now_s=lambda: self.now_s)

    async def read(self) -> list[ModelVersion]:
        self.reads += 1
        return [ModelVersion(name, "1", state, "") for name, state in self.models.items()]

    async def look(self) -> tuple[int, dict[str, ModelState]]:
        edition, lines = await self.index.look()
        return edition, {line[0]: line[2] for line in lines}


async def test_what_is_settled_is_read_seldom_however_many_ask() -> None:
    triton = Triton()
    assert [await triton.look() for _ in range(10)] == [(1, triton.models)] * 10
    assert triton.reads == 1
    triton.now_s += READ_EVERY_S
    assert await triton.look() == (1, triton.models), "read again, it is the same edition"
    assert triton.reads == 2
    triton.models["b"] = READY  # by others
    triton.now_s += READ_EVERY_S
    assert await triton.look() == (2, triton.models)


@pytest.mark.parametrize("state", [LOADING, UNLOADING])
async def test_while_a_model_is_on_its_way_each_look_reads(state: ModelState) -> None:
    triton = Triton()
    triton.models["a"] = state
    await triton.look()
    triton.models["a"] = READY
    assert await triton.look() == (2, triton.models)
    assert triton.reads == 2


async def test_during_a_change_each_look_reads_and_once_after_it() -> None:
    triton = Triton()
    await triton.look()
    with triton.index.changing():
        await triton.look()
        triton.models["a"] = UNLOADING
        assert (await triton.look())[1] == triton.models
        triton.models["a"] = UNAVAILABLE
        assert (await triton.look())[1] == triton.models
    reads = triton.reads
    await triton.look()
    await triton.look()
    assert triton.reads == reads + 1


async def test_a_read_that_a_change_has_overtaken_is_not_believed_for_long() -> None:
    triton = Triton()

    async def read() -> list[ModelVersion]:
        found = await triton.read()
        with triton.index.changing():
            triton.models["a"] = UNAVAILABLE
        return found

    triton.index = SettledIndex(read, now_s=lambda: triton.now_s)
    await triton.look()
    assert (await triton.look())[1] == triton.models


async def test_a_load_that_triton_does_not_list_yet_is_in_it() -> None:
    triton = Triton()
    with triton.index.loading("b"), triton.index.loading("c"):
        assert (await triton.look())[1]["b"] is LOADING
        triton.models["b"] = READY
        assert (await triton.look())[1] == {**triton.models, "c": LOADING}
    assert (await triton.look())[1] == triton.models


async def test_another_life_of_triton_is_read_at_once() -> None:
    triton = Triton()
    await triton.look()
    triton.models = {"a": UNAVAILABLE}
    triton.index.changed()
    assert (await triton.look())[1] == triton.models


async def test_a_triton_that_cannot_be_asked_is_no_index() -> None:
    async def read() -> list[ModelVersion]:
        raise UpstreamUnavailable("it is down")

    with pytest.raises(UpstreamUnavailable, match="it is down"):
        await SettledIndex(read, now_s=lambda: 0.0).look()


async def test_a_read_that_is_overtaken_by_a_later_one_changes_nothing() -> None:
    triton, overtaken = Triton(), asyncio.Event()
    found = await triton.read()

    async def slowly() -> list[ModelVersion]:
        await overtaken.wait()
        return found

    index = SettledIndex(slowly, now_s=lambda: triton.now_s)
    async with asyncio.TaskGroup() as tasks:
        slow = tasks.create_task(index.look())
        await settle()
        with index.changing():
            triton.models["b"] = READY
        index._read = triton.read
        edition, lines = await index.look()
        overtaken.set()
    assert slow.result() == await index.look() == (edition, lines)
    assert {line[0]: line[2] for line in lines} == triton.models
