"""Desired states that administrators set hold for all gateways, and after restarts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import nullcontext

import pytest

from control_plane.core.errors import Conflict, DeadlineExceeded, ModelLoadFailed, ModelNotFound, Overloaded
from control_plane.fleet.domain.memory import DesiredState, Measured
from tests.fakes.stores.fleet_memory import FakeFleetMemory
from tests.unit.fleet.fleet_bench import READY, FleetBench, model, running
from tests.unit.fleet.remembering_bench import SOON_S, beside, restarted, two

pytestmark = pytest.mark.virtual_time


class TestWishes:
    @pytest.mark.parametrize("told", [0, 1])
    async def test_what_is_unloaded_anywhere_is_gone_everywhere_and_comes_back_likewise(self, told: int) -> None:
        async with two(servers=2) as (leader, other, _):
            both = (leader, other)
            for triton in leader.tritons.values():
                triton.states["a"] = READY
            await asyncio.sleep(SOON_S)
            await both[told].models.unload("a")
            assert not any(triton.states for triton in leader.tritons.values())
            await asyncio.sleep(SOON_S)
            for bench in both:
                with pytest.raises(ModelNotFound):
                    await bench.use("a")
            await both[1 - told].models.load("a")
            assert [triton.states.get("a") for triton in leader.tritons.values()].count(READY) == 1
            await asyncio.sleep(SOON_S)
            for bench in both:
                await bench.use("a")
                assert bench.state.fleet.models["a"].spec.min_replicas == 1

    async def test_a_load_at_another_gateway_waits_for_it_and_pins_it(self) -> None:
        async with two(model("a", 60), model("b", 60)) as (leader, other, memory):
            began_s = other.now_s()
            await other.models.load("a")
            assert leader.tritons["s0"].states == {"a": READY}
            assert other.now_s() - began_s < 1.0 + 2 * SOON_S
            assert memory.wanted == {"a": DesiredState(1)}
            await asyncio.sleep(SOON_S)
            with pytest.raises(Overloaded, match="no room"):
                await leader.use("b", 5.0)

    async def test_what_is_loaded_is_loaded_anew_once(self) -> None:
        async with two() as (leader, other, _):
            await leader.models.load("a")
            await asyncio.sleep(SOON_S)
            for _ in range(2):
                await other.models.load("a")
            await asyncio.sleep(10)
            assert leader.said == ["load a"] * 3

    async def test_the_leaders_reason_is_told_and_each_asking_is_a_try(self) -> None:
        async with two(model("a"), model("huge", 101)) as (leader, other, memory):
            leader.tritons["s0"].failures["a"] = ModelLoadFailed("its weights are missing")
            for _ in range(2):
                with pytest.raises(ModelLoadFailed, match="its weights are missing"):
                    await other.models.load("a")
            assert leader.said == ["load a", "load a"]
            with pytest.raises(Overloaded, match="needs 101 bytes"):
                await other.models.load("huge")
            assert {wish.min_replicas for wish in memory.wanted.values()} == {None}

    async def test_nobody_waits_for_ever_and_the_next_leader_does_it(self) -> None:
        async with two() as (leader, other, _):
            await leader.models.load("a")
            await asyncio.sleep(SOON_S)
            leader.is_leader = False
            with pytest.raises(DeadlineExceeded, match="leader has not carried out"):
                await other.models.unload("a")
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(other.models.unload("a"))
                await asyncio.sleep(5.0)
                assert leader.tritons["s0"].states == {"a": READY}
                other.is_leader = True
            assert waiting.done()
            assert not leader.tritons["s0"].states

    @pytest.mark.parametrize("after_s", [0.0, 0.2, 1.3])
    async def test_who_asks_for_the_same_at_the_same_time_is_answered_too(self, after_s: float) -> None:
        async with two() as (leader, other, memory):

            async def load(after_s: float) -> None:
                await asyncio.sleep(after_s)
                async with asyncio.timeout(5.0):
                    await other.models.load("a")

            await asyncio.gather(load(0.0), load(after_s))
            assert leader.said == ["load a"]
            assert memory.wanted == {"a": DesiredState(1)}

    async def test_what_another_gateway_asks_for_meanwhile_is_neither_lost_nor_waited_for_in_vain(self) -> None:
        async with two() as (leader, other, memory):
            third = beside(leader, memory)
            async with running(third, reconciles=True, remembers=True), asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
                await third.remembering.recall()
                for bench in (other, third):
                    tasks.create_task(bench.models.load("a"))
            await asyncio.sleep(SOON_S)
            assert memory.wanted == {"a": DesiredState(1)}
            memory.wanted["a"] = DesiredState(asked="later")  # somebody's who has not seen what stands
            await leader.models.load("a")
            # It may have been carried out together with this one.
            assert memory.wanted["a"] in (DesiredState(1, asked="later"), DesiredState(1))
            await asyncio.sleep(5.0)
            assert leader.state.measurements.record_of("a").answered == "later"

    @pytest.mark.parametrize(
        "other_wish", [DesiredState(asked="another's"), DesiredState(1), DesiredState(asked="an unload's", is_suspended=True)]
    )
    async def test_who_waits_for_what_has_been_replaced_by_another_is_answered(self, other_wish: DesiredState) -> None:
        async with two() as (leader, other, memory):
            leader.is_leader = False
            async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:

                async def ask() -> None:
                    with pytest.raises(Conflict) if other_wish.is_suspended else nullcontext():
                        await other.models.load("a")

                tasks.create_task(ask())
                await asyncio.sleep(SOON_S)
                assert memory.wanted["a"].asked
                memory.wanted["a"] = other_wish
                leader.is_leader = True
            assert memory.wanted["a"] == (other_wish if other_wish.is_suspended else DesiredState(1))

    async def test_an_unload_that_a_load_has_replaced_does_not_wait_for_that(self) -> None:
        async with two() as (leader, other, memory):
            leader.tritons["s0"].states["a"] = READY
            leader.tritons["s0"].load_s["a"] = 100.0
            await asyncio.sleep(SOON_S)
            leader.is_leader = False
            async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
                tasks.create_task(other.models.unload("a"))
                await asyncio.sleep(SOON_S)
                memory.wanted["a"] = DesiredState(asked="another's")
                leader.is_leader = True

    @pytest.mark.parametrize("is_there", [False, True])
    @pytest.mark.parametrize(("loads", "unloads"), [(0, 0), (0, 1), (1, 0), (1, 1)])
    async def test_an_unload_during_a_load_is_not_undone_by_it(self, loads: int, unloads: int, is_there: bool) -> None:
        async with two() as (leader, other, memory):
            both = (leader, other)
            if is_there:
                await leader.models.load("a")
            leader.tritons["s0"].load_s["a"] = 20.0
            async with asyncio.TaskGroup() as tasks:

                async def load() -> None:
                    with pytest.raises(Conflict, match="unloaded by an administrator meanwhile"):
                        await both[loads].models.load("a")

                tasks.create_task(load())
                await asyncio.sleep(3.0)
                await both[unloads].models.unload("a")
            await asyncio.sleep(30.0)
            assert memory.wanted["a"].is_suspended
            assert not leader.tritons["s0"].states

    async def test_a_load_that_has_not_begun_ends_with_an_unload(self) -> None:
        async with running(FleetBench(memory=FakeFleetMemory())) as bench:
            bench.tritons["s0"].load_s["b"] = 20.0

            async def load() -> None:
                with pytest.raises(Conflict, match="unloaded by an administrator meanwhile"):
                    await bench.models.load("a")

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(bench.models.load("b"))
                await asyncio.sleep(1.0)
                tasks.create_task(load())
                await asyncio.sleep(1.0)
                await bench.models.unload("a")
            assert bench.said == ["load b"]

    @pytest.mark.parametrize("told", [0, 1])
    @pytest.mark.parametrize("was", ["load", "unload"])
    async def test_are_taken_back_by_a_release(self, told: int, was: str) -> None:
        async with two(model("a", 60), model("b", 60)) as (leader, other, memory):
            both = (leader, other)
            await (leader.models.load("a") if was == "load" else leader.models.unload("a"))
            await asyncio.sleep(SOON_S)
            await both[told].models.release("a")
            assert memory.wanted == {}
            await asyncio.sleep(SOON_S)
            for name in "aba":
                await leader.use(name)
            with pytest.raises(ModelNotFound):
                await other.models.release("nonesuch")

    async def test_what_the_store_has_lost_it_is_told_again(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            async with two() as (leader, other, memory):
                await leader.models.unload("a")
                await leader.models.load("b")
                await asyncio.sleep(SOON_S)
                memory.lose_wishes()
                await asyncio.sleep(SOON_S)
                assert leader.state.specs.is_suspended("a")
                assert other.state.specs.is_suspended("a")
                assert memory.wanted.keys() == {"a", "b"}
                memory.lose_wishes()
                await other.models.release("b")  # before anybody has looked
                assert memory.wanted.keys() == {"a"}
                await asyncio.sleep(SOON_S)
                assert leader.state.specs.wishes.keys() == other.state.specs.wishes.keys() == {"a"}
        assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
            "the store has lost what administrators have said of 2 models"
        ] * 2

    async def test_hold_after_a_restart(self) -> None:
        memory = FakeFleetMemory(
            wanted={"a": DesiredState(1), "b": DesiredState(0, is_suspended=True), "c": DesiredState(asked="of before")}
        )
        memory.models["c"] = Measured(40, answered="of before")
        bench = await restarted(memory)
        bench.tritons["s0"].states["b"] = READY
        await bench.models.keep("b")
        async with running(bench, reconciles=True, remembers=True):
            await asyncio.sleep(10)
            assert bench.tritons["s0"].states == {"a": READY}
            assert bench.said == ["load a", "unload b"]

    async def test_what_was_not_carried_out_by_one_leader_is_by_the_next(self) -> None:
        bench = await restarted(FakeFleetMemory(wanted={"a": DesiredState(asked="of before")}))
        async with running(bench, reconciles=True, remembers=True):
            await asyncio.sleep(10)
            assert bench.said == ["load a"]
            assert bench.state.measurements.known["a"].answered == "of before"

    async def test_a_step_stays_with_the_ensemble_that_needs_it(self) -> None:
        both = model("both", 60, steps=frozenset({"a"}))
        bench = await restarted(FakeFleetMemory(wanted={"a": DesiredState(is_suspended=True)}), model("a"), both)
        async with running(bench, reconciles=True, remembers=True):
            await bench.use("both")
            await asyncio.sleep(10)
            assert bench.said == ["load both"]

    async def test_what_was_read_before_one_does_not_stand_after_it(self) -> None:
        class Slow(FakeFleetMemory):
            async def wishes(self) -> Mapping[str, DesiredState]:
                found = await super().wishes()
                await asyncio.sleep(0.3)
                return found

        bench = await restarted(Slow())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.remembering.recall())
            await asyncio.sleep(0.1)
            await bench.models.unload("a")
        assert bench.state.specs.is_suspended("a")

    async def test_those_of_the_command_line_are_this_processes_own(self) -> None:
        memory = FakeFleetMemory()
        bench = await restarted(memory)
        async with running(bench, reconciles=True, remembers=True):
            await bench.models.keep("a")
            await bench.models.keep("a")
            assert bench.said == ["load a"]
            assert bench.state.fleet.models["a"].spec.min_replicas == 1
            assert not memory.wanted
