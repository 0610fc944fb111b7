"""Models of servers that have folders and stores of their own: what is known of each, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from control_plane.core.errors import Overloaded
from control_plane.models.domain.description import DescribedModel, ModelSpec, Tier
from tests.unit.fleet.fleet_bench import FleetBench, model, running

pytestmark = pytest.mark.virtual_time

FETCH_S = 7.0


@dataclass
class Host:
    """The part of `fleet/ports.ServerInstance` that is about files: those in `store` are fetched when they are held."""

    here: dict[str, DescribedModel]
    store: dict[str, DescribedModel] = field(default_factory=dict)

    def described(self) -> Mapping[str, DescribedModel]:
        return {name: DescribedModel(ModelSpec(name), 0, fetch_s=FETCH_S) for name in self.store} | self.here

    @asynccontextmanager
    async def held_locally(self, name: str) -> AsyncIterator[None]:
        if name in self.store:
            await asyncio.sleep(FETCH_S)
            self.here[name] = self.store.pop(name)
        yield


def named(*models: DescribedModel) -> dict[str, DescribedModel]:
    return {each.spec.name: each for each in models}


@pytest.mark.parametrize("first", [True, False], ids=["here and then cold", "cold and then here"])
async def test_where_its_files_are_more_is_known_of_a_model(first: bool) -> None:
    hosts = [Host(named(model("a", 30))), Host({}, named(model("a", 30), model("b")))]
    hosts = hosts if first else hosts[::-1]
    bench = FleetBench(servers=2, hosts={f"s{number}": host for number, host in enumerate(hosts)})
    await bench.files.describe()
    known = bench.state.fleet.models
    assert known["a"].spec == ModelSpec("a", 30)
    assert (known["a"].tier, known["b"].tier) == (Tier.WARM, Tier.COLD)
    assert (bench.state.fetch_s("a"), bench.state.fetch_s("b")) == (0.0, FETCH_S)
    assert known["b"].load_s >= FETCH_S, "so that whoever cannot wait for it is told"


async def test_one_that_turns_out_to_be_larger_than_was_thought_takes_no_memory_that_others_have() -> None:
    host = Host(named(model("a", 60)), named(model("b", 60)))
    bench = FleetBench(model("a", 60), model("b", 60), hosts={"s0": host})
    async with running(bench):
        await bench.files.describe()
        bench.state.pin("a", 1)
        await bench.use("a")
        assert bench.state.fleet.models["b"].spec.resident_bytes is None
        bench.state.fleet.models["b"].resident_bytes = 20  # what was thought of it
        with pytest.raises(Overloaded):
            await bench.use("b", 30.0)
    assert bench.said == ["load a"]
    assert bench.state.fleet.models["b"].resident_bytes == 60
