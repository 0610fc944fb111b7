"""What a node tells of its models' folders: whatever has changed, and at a pace that costs little."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from control_plane.metering.domain.compute_units import ModelCost
from control_plane.models.domain.description import DescribedModel, ModelSpec
from control_plane.node.told_models import ToldModels
from tests.unit.node.bench import NodeFilesOf


async def test_other_files_of_the_same_size_are_told() -> None:
    files = NodeFilesOf("ab")
    told = ToldModels(files)
    assert [set(each.models) for each in await told.look()] == [{"a", "b"}]
    assert await told.look() == []
    changed = files.models["a"] = replace(files.models["a"], changed_ns=7)
    (message,) = await told.look()
    assert message.models == {"a": changed}
    assert message.costs == {}


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("took_s", "least_s", "most_s"),
    [
        pytest.param(0.0, 5.0, 6.0, id="few models: as a gateway looks at its own"),
        pytest.param(0.05, 12.0, 30.0, id="a thousand models: less often"),
        pytest.param(0.4, 30.0, 30.0, id="many: not less often than that"),
    ],
)
async def test_looks_that_take_long_are_less_often(took_s: float, least_s: float, most_s: float) -> None:
    class Slow(NodeFilesOf):
        def read(self) -> tuple[Mapping[str, DescribedModel], Mapping[str, ModelCost]]:
            until_s = time.thread_time() + took_s
            while time.thread_time() < until_s:
                pass
            return super().read()

    files = Slow("a")
    told = ToldModels(files)
    await told.look()
    assert told.pause_s == 5.0, "what has just come may not be whole yet"
    await told.look()
    assert least_s <= told.pause_s <= most_s
    now_s = asyncio.get_running_loop().time
    began_s = now_s()
    await told.wait_until_due()
    assert now_s() - began_s == pytest.approx(told.pause_s)
    files.models |= NodeFilesOf("b").models
    began_s = now_s()
    await told.wait_until_due()
    assert now_s() - began_s == pytest.approx(1.0), "a model has come"


async def test_a_read_that_began_before_another_takes_nothing_back() -> None:
    class Stopped(NodeFilesOf):
        has_read, may_go_on = threading.Event(), threading.Event()

        def read(self) -> tuple[Mapping[str, DescribedModel], Mapping[str, ModelCost]]:
            found = super().read()
            self.has_read.set()
            self.may_go_on.wait(timeout=60.0)
            return found

    files = Stopped("a")
    files.put_in_store(DescribedModel(ModelSpec("b"), 5, changed_ns=1))
    told = ToldModels(files)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(told.look())
        await asyncio.to_thread(files.has_read.wait)
        files.models["b"] = files.cold.pop("b")
        second = tasks.create_task(told.look())
        await asyncio.sleep(0)
        files.may_go_on.set()
        assert [set(each.models) for each in await first] == [{"a", "b"}]
        assert [set(each.models) for each in await second] == [{"b"}]
    assert not told.is_cold("b")
