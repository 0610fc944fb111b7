"""Tests of a fleet with a sharded model: what loads, lists and answers for it is its parts, and it is loaded nowhere itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from control_plane.core.errors import ModelNotFound, NotSupported, Overloaded
from control_plane.core.infer_call import InferCall
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.memory import DesiredState
from control_plane.fleet.view.catalogue import FleetCatalogue
from control_plane.models.domain.description import DescribedModel, ModelSpec
from tests.aio import settle
from tests.unit.fleet.fleet_bench import READY, FleetBench, model, running
from tests.unit.sharding.domain.configs import CHAIN, config

pytestmark = pytest.mark.virtual_time

_WHOLE = DescribedModel(ModelSpec("whole", sharded=CHAIN), file_bytes=0)


def _bench(*more: DescribedModel, whole: DescribedModel = _WHOLE) -> FleetBench:
    """Servers of 100 bytes, of which each has room for one part."""
    return FleetBench(whole, model("front", 60), model("back", 60), *more, servers=2)


def _loaded(bench: FleetBench) -> dict[str, set[str]]:
    return {name: {each for each, state in triton.states.items() if state is READY} for name, triton in bench.tritons.items()}


async def test_its_parts_are_loaded_where_each_has_room_and_kept() -> None:
    async with running(_bench()) as bench:
        await bench.models.load("whole")
        assert sorted(map(sorted, _loaded(bench).values())) == [["back"], ["front"]]
        assert bench.models.desired == {"front": DesiredState(min_replicas=1), "back": DesiredState(min_replicas=1)}


async def test_it_is_ready_while_its_parts_are_loaded_or_loadable_and_listed_once_they_are_loaded() -> None:
    async with running(_bench()) as bench:
        catalogue = FleetCatalogue(bench.state, bench.servers)
        assert catalogue.is_ready("whole")
        assert not catalogue.is_loaded("whole")
        assert ModelVersion("whole", "", ModelState.UNAVAILABLE, "") in await catalogue.index()
        await bench.models.load("whole")
        assert ModelVersion("whole", "1", READY, "") in await catalogue.index()
        assert (await bench.models.get("whole")).state is READY
        assert [catalogue.is_loaded(each) for each in ("whole", "front", "nonesuch")] == [True, True, False]
        assert catalogue.told_config("whole") == CHAIN
        await bench.models.unload("back")
        assert not catalogue.is_ready("whole")
        assert not catalogue.is_loaded("whole")
        assert (await bench.models.get("whole")).state is ModelState.UNAVAILABLE


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(config(("lost", {"x": "X"}, {"y": "Y"})), id="a part that nobody has"),
        pytest.param(config(("front", {"x": "Q"}, {"y": "Y"})), id="steps that cannot be carried out"),
        pytest.param(config(("other", {"x": "X"}, {"y": "Y"})), id="a part that is sharded itself"),
    ],
)
async def test_it_is_not_ready_where_no_request_would_be_answered(steps: str) -> None:
    other = DescribedModel(ModelSpec("other", sharded=CHAIN), 0)
    async with running(_bench(other, whole=DescribedModel(ModelSpec("whole", sharded=steps), 0))) as bench:
        assert not FleetCatalogue(bench.state, bench.servers).is_ready("whole")


async def test_it_is_ready_no_sooner_than_the_last_part_that_is_being_loaded() -> None:
    async with running(_bench()) as bench:
        assert bench.router.ready_in_s("whole") == 0.0
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.use("front"))
            tasks.create_task(bench.use("back"))
            await settle()
            expected_s = bench.router.ready_in_s("back")
            assert bench.router.ready_in_s("whole") == expected_s > 0
        assert bench.router.ready_in_s("whole") == 0.0


async def test_its_unload_leaves_the_parts_unless_they_are_to_go_with_it() -> None:
    async with running(_bench()) as bench:
        await bench.models.load("whole")
        await bench.models.unload("whole")
        assert not FleetCatalogue(bench.state, bench.servers).is_ready("whole")
        assert _loaded(bench)["s0"]
        assert _loaded(bench)["s1"]
        await bench.models.load("whole")
        assert FleetCatalogue(bench.state, bench.servers).is_ready("whole")
        await bench.models.unload("whole", unload_dependents=True)
        assert _loaded(bench) == {"s0": set(), "s1": set()}


async def test_nothing_loads_it_as_a_whole() -> None:
    pinned = replace(_WHOLE, spec=replace(_WHOLE.spec, min_replicas=1))
    async with running(_bench(whole=pinned), reconciles=True) as bench:
        with pytest.raises(NotSupported, match="'whole' is sharded, so no server has it as a whole"):
            await bench.router.acquire(InferCall("whole", "", "", ()), deadline_s=bench.now_s() + 10)
        await bench.models.set_desired("whole", DesiredState(min_replicas=2))
        await bench.models.keep("whole")
        assert not any("whole" in models for models in _loaded(bench).values())


async def test_one_that_is_unloaded_is_unknown() -> None:
    async with running(_bench()) as bench:
        await bench.models.unload("whole")
        with pytest.raises(ModelNotFound):
            await bench.router.acquire(InferCall("whole", "", "", ()), deadline_s=bench.now_s() + 10)


async def test_the_first_request_for_one_that_only_a_store_has_is_refused_and_from_then_on_it_is_known() -> None:
    bench = _bench()
    bench.described.cold = {"whole"}
    bench.state.specs.describe({"whole": DescribedModel(ModelSpec("whole"), 0, fetch_s=10.0), **bench.described.read()})
    assert not FleetCatalogue(bench.state, bench.servers).told_config("whole")
    async with running(bench):
        with pytest.raises(Overloaded, match="so its parts are loaded in its place; ask again"):
            await bench.router.acquire(InferCall("whole", "", "", ()), deadline_s=bench.now_s() + 25)
        assert FleetCatalogue(bench.state, bench.servers).told_config("whole") == CHAIN
        assert FleetCatalogue(bench.state, bench.servers).is_ready("whole")
        assert not any("whole" in models for models in _loaded(bench).values())
