"""Models of servers that have folders and stores of their own: what is known of each, and when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from control_plane.core.errors import Overloaded
from control_plane.fleet.view.files import FleetFiles
from control_plane.models.domain.description import DescribedModel, ModelSpec, Tier
from tests.aio import run
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
    assert (bench.state.specs.fetch_s("a"), bench.state.specs.fetch_s("b")) == (0.0, FETCH_S)
    assert known["b"].load_s >= FETCH_S, "so that whoever cannot wait for it is told"


async def test_one_that_turns_out_to_be_larger_than_was_thought_takes_no_memory_that_others_have() -> None:
    host = Host(named(model("a", 60)), named(model("b", 60)))
    bench = FleetBench(model("a", 60), model("b", 60), hosts={"s0": host})
    async with running(bench):
        await bench.files.describe()
        bench.state.specs.pin("a", 1)
        await bench.use("a")
        assert bench.state.fleet.models["b"].spec.resident_bytes is None
        bench.state.fleet.models["b"].resident_bytes = 20  # what was thought of it
        with pytest.raises(Overloaded):
            await bench.use("b", 30.0)
    assert bench.said == ["load a"]
    assert bench.state.fleet.models["b"].resident_bytes == 60


async def test_thousands_are_described_a_hundred_at_a_time() -> None:
    host = Host(named(*(model(f"m{number}") for number in range(1000))))
    bench = FleetBench(hosts={"s0": host})
    describing = asyncio.get_running_loop().create_task(bench.files.describe())
    known = []
    while not describing.done():
        known.append(len(bench.state.fleet.models))
        await asyncio.sleep(0)
    assert max(after - before for before, after in pairwise(known)) <= 100
    assert bench.state.fleet.models.keys() == host.here.keys()


class Reads:
    """`models/ports.ModelDescriptions` of which the first read takes longer than the second, but for a lock."""

    def __init__(self) -> None:
        self._begun = 0
        self._is_overtaken = threading.Event()

    def read(self) -> dict[str, DescribedModel]:
        self._begun += 1
        if self._begun == 1:
            self._is_overtaken.wait(0.3)
            return named(model("a"))
        self._is_overtaken.set()
        return named(model("a"), model("b"))


def test_what_an_earlier_read_has_found_takes_nothing_back() -> None:
    async def main() -> None:
        bench = FleetBench(model("a"))
        files = FleetFiles(bench.state, Reads(), timeout_s=1.0)
        await asyncio.gather(files.describe(), files.describe())
        assert bench.state.fleet.models.keys() == {"a", "b"}

    run(main())  # in real time: else no read overtakes another
