from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

import pytest

from control_plane.core.errors import ModelLoadFailed, ModelNotFound, Overloaded, StoreUnavailable
from control_plane.core.model import MODEL_NAME
from control_plane.fleet.domain.memory import DesiredState, Measured
from control_plane.models.domain.description import DescribedModel, ModelSpec
from tests.fakes.stores.fleet_memory import FakeFleetMemory
from tests.unit.fleet.fleet_bench import READY, FleetBench, model, running
from tests.unit.fleet.remembering_bench import HOUR_S, SOON_S, restarted, two

pytestmark = pytest.mark.virtual_time


class TestMeasurements:
    async def test_are_written_by_the_leader_and_known_to_all(self) -> None:
        async with two(DescribedModel(ModelSpec("a"), 5)) as (leader, other, memory):
            leader.state.measurements.loaded("a", 7.0, 30)
            await asyncio.sleep(SOON_S)
            assert memory.models == {"a": Measured(0, 30, load_s=7.0)}
            facts = other.state.fleet.models["a"]
            assert (facts.resident_bytes, facts.load_s) == (30, 7.0)
            await asyncio.sleep(10)
            assert memory.models == {"a": Measured(5, 30, load_s=7.0)}
            writes = memory.writes
            await asyncio.sleep(100)
            assert memory.writes == writes

    async def test_that_the_store_has_are_its_own_objects_so_that_thousands_need_not_be_compared(self) -> None:
        async with two() as (leader, _, memory):
            leader.state.measurements.loaded("a", 7.0, 30)
            await asyncio.sleep(10)
            memory.models["a"] = replace(memory.models["a"])  # as it is read from a Redis
            writes = memory.writes
            await asyncio.sleep(SOON_S)
            assert leader.state.measurements.known["a"] is memory.models["a"]
            assert memory.writes == writes

    async def test_outlive_the_process(self) -> None:
        memory = FakeFleetMemory()
        bench = FleetBench(model("a"), DescribedModel(ModelSpec("b"), 5), memory=memory)
        async with running(bench, remembers=True):
            await bench.use("a", for_s=0.3)
            await bench.use("a", for_s=0.3)
            bench.state.measurements.loaded("b", 9.0, 30)
            await asyncio.sleep(20)
            await bench.remembering.close()
        again = await restarted(memory, model("a"), DescribedModel(ModelSpec("b"), 5), model("c"))
        a, b, c = (again.state.fleet.models[name] for name in "abc")
        assert (b.resident_bytes, b.load_s) == (30, 9.0)
        assert a.load_s == pytest.approx(1.0)
        assert c.load_s > 1.0
        assert a.service_s == c.service_s  # it is known already: what it has served here goes before
        fresh = FleetBench(model("c"), memory=memory)
        await fresh.remembering.recall()
        fresh.state.specs.describe({"a": model("a")})
        assert fresh.state.fleet.models["a"].service_s > 2 * c.service_s

    async def test_are_told_at_a_stop(self) -> None:
        memory = FakeFleetMemory()
        bench = await restarted(memory, model("a"))
        bench.state.measurements.loaded("a", 9.0, None)
        await bench.remembering.close()
        assert memory.models["a"].load_s == 9.0

    async def test_who_is_not_the_leader_writes_none(self) -> None:
        async with two() as (leader, other, memory):
            other.state.measurements.loaded("a", 7.0, 30)
            await asyncio.sleep(SOON_S)
            assert not memory.models
            other.is_leader, leader.is_leader = True, False
            await asyncio.sleep(SOON_S)
            assert memory.models["a"].load_s == 7.0

    async def test_the_next_leader_begins_with_what_the_last_one_wrote(self) -> None:
        async with two() as (leader, other, memory):
            memory.models["a"] = Measured(40, load_s=3.0)  # just before it lost the lease
            leader.is_leader, other.is_leader = False, True
            await other.remembering.recall()
            assert memory.models["a"].load_s == other.state.fleet.models["a"].load_s == 3.0

    async def test_what_the_store_has_lost_it_is_told_again(self) -> None:
        async with two() as (leader, other, memory):
            leader.state.measurements.loaded("a", 7.0, None)
            await asyncio.sleep(SOON_S)
            memory.models.clear()
            await other.remembering.recall()
            assert other.state.fleet.models["a"].load_s == 7.0
            await asyncio.sleep(SOON_S)
            assert memory.models["a"].load_s == 7.0

    async def test_of_a_model_whose_name_no_store_gives_back_are_not_written_again_and_again(self) -> None:
        class Named(FakeFleetMemory):
            async def measured(self) -> Mapping[str, Measured]:
                return {name: each for name, each in (await super().measured()).items() if MODEL_NAME.fullmatch(name)}

        memory = Named()
        bench = await restarted(memory, model("my model"), model("a"))
        async with running(bench, reconciles=True, remembers=True):
            with pytest.raises(Overloaded, match="cannot be a model's name"):
                await bench.use("my model", timeout_s=5.0)
            await bench.use("a")
            await asyncio.sleep(20)
            assert memory.models.keys() == {"a"}
            writes = memory.writes
            await asyncio.sleep(60)
            assert memory.writes == writes

    async def test_of_models_that_nobody_has_are_dropped_in_time(self) -> None:
        memory = FakeFleetMemory(
            {"gone": Measured(1), "away": Measured(1), "a": Measured(40)}, {"gone": DesiredState(1), "a": DesiredState(0)}
        )
        bench = await restarted(memory, model("a"))
        async with running(bench, reconciles=True, remembers=True):
            await asyncio.sleep(HOUR_S / 2)
            bench.described.models["away"] = model("away")
            await asyncio.sleep(10)
            del bench.described.models["away"]
            await asyncio.sleep(HOUR_S / 2 + 10)
            assert memory.models.keys() == {"away", "a"}
            assert memory.wanted.keys() == {"a"}
            await asyncio.sleep(HOUR_S)
            assert memory.models.keys() == bench.state.measurements.known.keys() == {"a"}


class TestFailures:
    async def test_keep_a_model_out_everywhere_with_their_reason_also_after_a_restart(self) -> None:
        async with two(servers=2) as (leader, other, memory):
            for triton in leader.tritons.values():
                triton.failures["a"] = ModelLoadFailed("its weights are missing")
            leader.router.loads.load_if_none_is("a")
            await asyncio.sleep(1.0 + SOON_S)
            assert other.state.measurements.why_quarantined("a") == "its weights are missing"
            with pytest.raises(Overloaded, match="its weights are missing"):
                await other.use("a", 0.1)
            again = await restarted(memory)
            assert again.state.measurements.why_quarantined("a") == "its weights are missing"

    async def test_what_is_to_be_loaded_at_a_start_is_tried_though_it_failed_before(self) -> None:
        known = Measured(40, failures=9, quarantined_until_s=2e9, why="no weights")
        bench = await restarted(FakeFleetMemory({"a": known}))
        async with running(bench):
            with pytest.raises(Overloaded, match="no weights"):
                await bench.use("a", 0.1)
            await bench.models.keep("a")
            assert bench.router.ready() == {"a"}


class TestOutages:
    async def test_each_works_on_with_what_it_has_and_says_it_once(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "control_plane.fleet.view.memory"):
            async with two() as (leader, other, memory):
                await leader.models.unload("b")
                await asyncio.sleep(SOON_S)
                memory.is_away = True
                await leader.use("a")
                await asyncio.sleep(30)
                for bench in (leader, other):
                    with pytest.raises(StoreUnavailable):
                        await bench.models.unload("a")
                assert leader.tritons["s0"].states == {"a": READY}
                with pytest.raises(ModelNotFound):
                    await other.use("b")
                assert len(caplog.records) == 2  # one each
                memory.is_away = False
                await asyncio.sleep(SOON_S)
                assert memory.models["a"].load_s == other.state.measurements.record_of("a").load_s == 1.0
                memory.is_away = True
                await asyncio.sleep(30)
                assert len(caplog.records) == 4

    async def test_a_start_without_the_store_forgets_nothing(self) -> None:
        memory = FakeFleetMemory({"a": Measured(40, load_s=9.0)}, {"b": DesiredState(is_suspended=True)}, is_away=True)
        bench = await restarted(memory)
        async with running(bench, reconciles=True, remembers=True):
            await asyncio.sleep(10)
            memory.is_away = False
            await asyncio.sleep(SOON_S)
            assert bench.state.fleet.models["a"].load_s == memory.models["a"].load_s == 9.0
            with pytest.raises(ModelNotFound):
                await bench.use("b")
