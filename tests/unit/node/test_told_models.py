"""What a node tells of its models' folders: whatever has changed, and at a pace that costs little."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from control_plane.metering.domain.compute_units import ModelCost
from control_plane.models.domain.description import DescribedModel
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

    told = ToldModels(Slow("a"))
    await told.look()
    assert least_s <= told.pause_s <= most_s
