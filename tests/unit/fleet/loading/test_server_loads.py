from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import ModelLoadFailed, UpstreamUnavailable
from control_plane.core.fingerprint import LoadedConfig
from control_plane.core.held_memory import HeldMemory
from control_plane.fleet.adapters.own_instance import OwnInstance
from control_plane.fleet.loading.server_loads import ServerLoads
from control_plane.models.domain.description import DescribedModel, ModelSpec
from control_plane.models.fleet_fingerprints import FleetFingerprints
from control_plane.models.loaded_contents import LoadedContents
from control_plane.models.model_service import ModelService
from tests.fakes import FakeBoard, FakeReading
from tests.unit.fleet.fleet_bench import LOADING, READY, FleetBench, TimedControl, model, running

pytestmark = pytest.mark.virtual_time

MIB = 2**20


async def bring(bench: FleetBench, name: str, *victims: str) -> None:
    await bench.loads["s0"].load_after_evicting(bench.state.fleet.models[name], victims)


async def test_the_picture_follows_each_step() -> None:
    async with running(FleetBench(model("a", 60), model("b", 60))) as bench, asyncio.TaskGroup() as tasks:
        await bring(bench, "a")
        assert bench.replica("a").state is READY
        tasks.create_task(bring(bench, "b", "a"))
        await asyncio.sleep(1.0)
        assert {name: replica.state for name, replica in bench.server().replicas.items()} in ({}, {"b": LOADING})
        await asyncio.sleep(1.0)
        assert {name: replica.state for name, replica in bench.server().replicas.items()} == {"b": READY}
        await bench.loads["s0"].unload("b")
        assert not bench.server().replicas


async def test_what_it_takes_and_how_long_is_learned() -> None:
    bench = FleetBench(DescribedModel(ModelSpec("a"), file_bytes=MIB), budget_bytes=1000 * MIB)
    bench.resident["s0"] = 500 * MIB
    control = bench.tritons["s0"]
    control.load_s["a"] = 7.0
    async with running(bench), asyncio.TaskGroup() as tasks:
        tasks.create_task(bring(bench, "a"))
        await asyncio.sleep(6.0)
        bench.resident["s0"] = 530 * MIB
    facts = bench.state.fleet.models["a"]
    assert (facts.resident_bytes, facts.load_s) == (30 * MIB, 7.0)
    assert bench.replica("a").bytes == 30 * MIB


@pytest.mark.parametrize(
    ("before", "after", "learned"),
    [
        pytest.param(HeldMemory(500, 100), HeldMemory(510, 190), 90, id="on the GPU"),
        pytest.param(HeldMemory(500, 100), HeldMemory(570, 110), 70, id="more of main memory, which the budget bounds, too"),
        pytest.param(HeldMemory(500, 100), HeldMemory(570, None), None, id="the driver went away meanwhile"),
        pytest.param(HeldMemory(500, None), HeldMemory(570, 300), None, id="or came back, with the memory of others"),
    ],
)
async def test_a_model_weighs_what_it_takes_of_main_or_gpu_memory(before: HeldMemory, after: HeldMemory, learned: int | None) -> None:
    bench = FleetBench(DescribedModel(ModelSpec("a"), file_bytes=MIB), budget_bytes=1000 * MIB)
    guess = bench.state.fleet.models["a"].resident_bytes
    bench.resident["s0"] = before
    bench.tritons["s0"].load_s["a"] = 7.0
    async with running(bench), asyncio.TaskGroup() as tasks:
        tasks.create_task(bring(bench, "a"))
        await asyncio.sleep(6.0)
        bench.resident["s0"] = after
    assert bench.state.fleet.models["a"].resident_bytes == (guess if learned is None else learned)
    await bench.loads["s0"].measure_memory()
    assert bench.state.fleet.models["a"].resident_bytes == (guess if learned is None else learned)


@pytest.mark.parametrize("is_asked", [True, False])
async def test_a_failed_load_counts_as_one_only_if_triton_was_asked(is_asked: bool) -> None:
    async with running(FleetBench(servers=1)) as bench:
        control = bench.tritons["s0"]
        if is_asked:
            control.failures["a"] = ModelLoadFailed("its weights are cut short")
        else:
            control.states["b"] = LOADING  # another process loads it, and the lease is lost meanwhile
            asyncio.get_running_loop().call_later(5.0, control.states.pop, "b")
            asyncio.get_running_loop().call_later(3.0, setattr, bench, "is_leader", False)
        with pytest.raises(ModelLoadFailed if is_asked else UpstreamUnavailable):
            await bring(bench, "a")
        assert bench.said == (["load a"] if is_asked else [])
        assert [move.failed for move in bench.state.counts.moves.values()] == ([1] if is_asked else [])


async def test_who_is_not_the_leader_any_more_reloads_nothing() -> None:
    async with running(FleetBench()) as bench:
        await bring(bench, "a")
        bench.is_leader = False
        with pytest.raises(UpstreamUnavailable):
            await bench.loads["s0"].reload(bench.state.fleet.models["a"])
        assert bench.said == ["load a"]


async def test_waiting_for_victims_is_no_part_of_the_load() -> None:
    bench = FleetBench(model("a", 60), model("b", 60))
    bench.tritons["s0"].drain_s = 20.0
    async with running(bench):
        await bring(bench, "a")
        await bring(bench, "b", "a")
        assert bench.state.fleet.models["b"].load_s == pytest.approx(1.0)


async def test_one_that_joins_a_load_that_somebody_else_began_learns_nothing_absurd() -> None:
    async with running(FleetBench()) as bench, asyncio.TaskGroup() as tasks:
        await asyncio.sleep(1000.0)
        tasks.create_task(bench.units["s0"].load("a"))
        await asyncio.sleep(0.5)
        bench.tritons["s0"].states.clear()  # it is not in the index yet
        tasks.create_task(bring(bench, "a"))
        await asyncio.sleep(0)
        bench.tritons["s0"].states["a"] = LOADING
        await asyncio.sleep(3.0)
        assert bench.state.fleet.models["a"].load_s <= 2.0


async def test_another_life_of_its_triton_is_seen_as_it_is() -> None:
    async with running(FleetBench()) as bench:
        await bring(bench, "a")
        bench.kill("s0")
        with pytest.raises(UpstreamUnavailable, match="crashed"):
            await bring(bench, "b")
        with pytest.raises(UpstreamUnavailable, match="crashed"):
            await bench.loads["s0"].poll_index()
        bench.bring_up("s0")
        await bring(bench, "b")
        assert bench.server().replicas.keys() == {"b"}
        assert bench.said == ["load a", "load b"]


@pytest.mark.parametrize(("others", "goes"), [((), {"both", "a"}), (("other",), {"both"})])
async def test_an_ensemble_takes_its_steps_along_unless_another_needs_them(others: tuple[str, ...], goes: set[str]) -> None:
    steps = frozenset({"a"})
    async with running(FleetBench(model("a", 10), model("both", 20, steps=steps), model("other", 20, steps=steps))) as bench:
        for name in ("both", *others):
            await bring(bench, name)
        there = {"both", "a", *others}
        assert bench.server().replicas.keys() == there
        assert bench.server().held_bytes == 20 * (1 + len(others))
        await bench.loads["s0"].unload("both")
        await asyncio.sleep(1.0)
        await bench.loads["s0"].poll_index()
        assert bench.server().replicas.keys() == there - goes


class Settling(TimedControl):
    """Triton that takes a while to tell its models' configurations."""

    async def loaded_config(self, name: str) -> LoadedConfig:
        await asyncio.sleep(5.0)
        return await super().loaded_config(name)


async def test_a_replica_serves_when_it_is_known_what_its_answers_are_made_of() -> None:
    """Otherwise a replica with other weights than those elsewhere would answer under their fingerprint."""
    bench, board = FleetBench(servers=2), FakeBoard()
    boards = FleetFingerprints(board)
    for number, name in enumerate(bench.tritons):
        bench.tritons[name] = bench.servers.members[name].pick().control = Settling(sizes={"a": 40})  # type: ignore[attr-defined]
        contents = LoadedContents(FakeReading({"a": f"weights {number}"}), boards.of_server(name))
        await contents.restart(bench.servers.members[name].pick())
        unit = bench.units[name] = ModelService(
            servers=bench.servers.members[name], repository=None, load=[], load_timeout_s=300.0, contents=contents
        )
        bench.loads[name] = ServerLoads(
            bench.servers.members[name], OwnInstance(unit), bench.state, require=lambda: 1, load_timeout_s=300.0
        )
    async with running(bench, reconciles=True), asyncio.TaskGroup() as tasks:
        facts = bench.state.fleet.models["a"]
        await bench.loads["s0"].load_after_evicting(facts, ())
        assert "a" in board.known
        tasks.create_task(bench.loads["s1"].load_after_evicting(facts, ()))
        for _ in range(100):
            await asyncio.sleep(0.1)
            if (claim := bench.state.reserve("a", "s1")) is not None:
                claim.release(answered=False)
                assert "a" not in board.known
                break
        else:
            raise AssertionError("it never serves")


async def test_a_triton_whose_memory_cannot_be_read_is_asked_for_its_models_sizes() -> None:
    async with running(FleetBench(DescribedModel(ModelSpec("a"), 5), model("told"))) as bench:
        bench.tritons["s0"].memory = {"a": 30, "told": 30}
        await bench.loads["s0"].measure_memory()
        assert [bench.state.fleet.models[name].resident_bytes for name in ("a", "told")] == [30, 40]
        bench.kill("s0")
        await bench.loads["s0"].measure_memory()
