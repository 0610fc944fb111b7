from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext

import pytest

from control_plane.domain.errors import Conflict, DeadlineExceeded, ModelLoadFailed, ModelNotFound, Overloaded, StoreUnavailable
from control_plane.domain.fleet import DescribedModel, ModelSpec
from control_plane.domain.fleet_memory import Measured, Wish
from control_plane.domain.model import MODEL_NAME
from tests.fakes import FakeUpstream
from tests.fakes.fleet_memory import FakeFleetMemory
from tests.unit.services.fleet_bench import READY, FleetBench, model, play, running

SOON_S = 1.2
"""Within a second everybody knows."""
HOUR_S = 3600.0
MIB = 2**20


def beside(one: FleetBench, memory: FakeFleetMemory) -> FleetBench:
    """Another gateway before the same Tritons, which is not the owner."""
    other = FleetBench(*one.described.models.values(), servers=len(one.tritons), memory=memory)
    other.is_owner = False
    other.ask_owner = lambda model: not other.is_owner
    for name, triton in one.tritons.items():
        other.tritons[name] = triton
        other.servers.members[name].up(FakeUpstream(control=triton))
    return other


@asynccontextmanager
async def two(*models: DescribedModel, servers: int = 1) -> AsyncIterator[tuple[FleetBench, FleetBench, FakeFleetMemory]]:
    """The owner, another gateway, and what they share."""
    memory = FakeFleetMemory()
    owner = FleetBench(*models, servers=servers, memory=memory)
    other = beside(owner, memory)
    async with AsyncExitStack() as stack:
        for bench in (owner, other):
            await stack.enter_async_context(running(bench, reconciles=True, remembers=True))
        await asyncio.sleep(SOON_S)
        yield owner, other, memory


async def restarted(memory: FakeFleetMemory, *models: DescribedModel) -> FleetBench:
    bench = FleetBench(*models, memory=memory)
    await bench.remembering.recall()
    return bench


class TestMeasurements:
    def test_are_written_by_the_owner_and_known_to_all(self) -> None:
        async def main() -> None:
            async with two(DescribedModel(ModelSpec("a"), 5)) as (owner, other, memory):
                owner.state.measurements.loaded("a", 7.0, 30)
                await asyncio.sleep(SOON_S)
                assert memory.models == {"a": Measured(0, 30, load_s=7.0)}
                facts = other.state.fleet.models["a"]
                assert (facts.resident_bytes, facts.load_s) == (30, 7.0)
                await asyncio.sleep(10)
                assert memory.models == {"a": Measured(5, 30, load_s=7.0)}
                writes = memory.writes
                await asyncio.sleep(100)
                assert memory.writes == writes

        play(main)

    def test_outlive_the_process(self) -> None:
        async def main() -> None:
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
            fresh.state.describe({"a": model("a")})
            assert fresh.state.fleet.models["a"].service_s > 2 * c.service_s

        play(main)

    def test_are_told_at_a_stop(self) -> None:
        async def main() -> None:
            memory = FakeFleetMemory()
            bench = await restarted(memory, model("a"))
            bench.state.measurements.loaded("a", 9.0, None)
            await bench.remembering.close()
            assert memory.models["a"].load_s == 9.0

        play(main)

    def test_who_is_not_the_owner_writes_none(self) -> None:
        async def main() -> None:
            async with two() as (owner, other, memory):
                other.state.measurements.loaded("a", 7.0, 30)
                await asyncio.sleep(SOON_S)
                assert not memory.models
                other.is_owner, owner.is_owner = True, False
                await asyncio.sleep(SOON_S)
                assert memory.models["a"].load_s == 7.0

        play(main)

    def test_the_next_owner_begins_with_what_the_last_one_wrote(self) -> None:
        async def main() -> None:
            async with two() as (owner, other, memory):
                memory.models["a"] = Measured(40, load_s=3.0)  # just before it lost the lease
                owner.is_owner, other.is_owner = False, True
                await other.remembering.recall()
                assert memory.models["a"].load_s == other.state.fleet.models["a"].load_s == 3.0

        play(main)

    def test_what_the_store_has_lost_it_is_told_again(self) -> None:
        async def main() -> None:
            async with two() as (owner, other, memory):
                owner.state.measurements.loaded("a", 7.0, None)
                await asyncio.sleep(SOON_S)
                memory.models.clear()
                await other.remembering.recall()
                assert other.state.fleet.models["a"].load_s == 7.0
                await asyncio.sleep(SOON_S)
                assert memory.models["a"].load_s == 7.0

        play(main)

    def test_of_a_model_whose_name_no_store_gives_back_are_not_written_again_and_again(self) -> None:
        class Named(FakeFleetMemory):
            async def measured(self) -> Mapping[str, Measured]:
                return {name: each for name, each in (await super().measured()).items() if MODEL_NAME.fullmatch(name)}

        async def main() -> None:
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

        play(main)

    def test_of_models_that_nobody_has_are_dropped_in_time(self) -> None:
        async def main() -> None:
            memory = FakeFleetMemory({"gone": Measured(1), "away": Measured(1), "a": Measured(40)}, {"gone": Wish(1), "a": Wish(0)})
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

        play(main)


class TestFailures:
    def test_keep_a_model_out_everywhere_with_their_reason_also_after_a_restart(self) -> None:
        async def main() -> None:
            async with two(servers=2) as (owner, other, memory):
                for triton in owner.tritons.values():
                    triton.failures["a"] = ModelLoadFailed("its weights are missing")
                owner.residency.loads.want("a")
                await asyncio.sleep(1.0 + SOON_S)
                assert other.residency.loads.why_quarantined("a") == "its weights are missing"
                with pytest.raises(Overloaded, match="its weights are missing"):
                    await other.use("a", 0.1)
                again = await restarted(memory)
                assert again.residency.loads.why_quarantined("a") == "its weights are missing"

        play(main)

    def test_what_is_to_be_loaded_at_a_start_is_tried_though_it_failed_before(self) -> None:
        async def main() -> None:
            known = Measured(40, failures=9, quarantined_until_s=2e9, why="no weights")
            bench = await restarted(FakeFleetMemory({"a": known}))
            async with running(bench):
                with pytest.raises(Overloaded, match="no weights"):
                    await bench.use("a", 0.1)
                await bench.models.keep("a")
                assert bench.residency.ready() == {"a"}

        play(main)


class TestWishes:
    @pytest.mark.parametrize("told", [0, 1])
    def test_what_is_unloaded_anywhere_is_gone_everywhere_and_comes_back_likewise(self, told: int) -> None:
        async def main() -> None:
            async with two(servers=2) as (owner, other, _):
                both = (owner, other)
                for triton in owner.tritons.values():
                    triton.states["a"] = READY
                await asyncio.sleep(SOON_S)
                await both[told].models.unload("a")
                assert not any(triton.states for triton in owner.tritons.values())
                await asyncio.sleep(SOON_S)
                for bench in both:
                    with pytest.raises(ModelNotFound):
                        await bench.use("a")
                await both[1 - told].models.load("a")
                assert [triton.states.get("a") for triton in owner.tritons.values()].count(READY) == 1
                await asyncio.sleep(SOON_S)
                for bench in both:
                    await bench.use("a")
                    assert bench.state.fleet.models["a"].spec.min_copies == 1

        play(main)

    def test_a_load_at_another_gateway_waits_for_it_and_pins_it(self) -> None:
        async def main() -> None:
            async with two(model("a", 60), model("b", 60)) as (owner, other, memory):
                began_s = other.now_s()
                await other.models.load("a")
                assert owner.tritons["s0"].states == {"a": READY}
                assert other.now_s() - began_s < 1.0 + 2 * SOON_S
                assert memory.wanted == {"a": Wish(1)}
                await asyncio.sleep(SOON_S)
                with pytest.raises(Overloaded, match="no room"):
                    await owner.use("b", 5.0)

        play(main)

    def test_what_is_loaded_is_loaded_anew_once(self) -> None:
        async def main() -> None:
            async with two() as (owner, other, _):
                await owner.models.load("a")
                await asyncio.sleep(SOON_S)
                for _ in range(2):
                    await other.models.load("a")
                await asyncio.sleep(10)
                assert owner.said == ["load a"] * 3

        play(main)

    def test_the_owners_reason_is_told_and_each_asking_is_a_try(self) -> None:
        async def main() -> None:
            async with two(model("a"), model("huge", 101)) as (owner, other, memory):
                owner.tritons["s0"].failures["a"] = ModelLoadFailed("its weights are missing")
                for _ in range(2):
                    with pytest.raises(ModelLoadFailed, match="its weights are missing"):
                        await other.models.load("a")
                assert owner.said == ["load a", "load a"]
                with pytest.raises(Overloaded, match="needs 101 bytes"):
                    await other.models.load("huge")
                assert {wish.min_copies for wish in memory.wanted.values()} == {None}

        play(main)

    def test_nobody_waits_for_ever_and_the_next_owner_does_it(self) -> None:
        async def main() -> None:
            async with two() as (owner, other, _):
                await owner.models.load("a")
                await asyncio.sleep(SOON_S)
                owner.is_owner = False
                with pytest.raises(DeadlineExceeded, match="owner has not done it"):
                    await other.models.unload("a")
                async with asyncio.TaskGroup() as tasks:
                    waiting = tasks.create_task(other.models.unload("a"))
                    await asyncio.sleep(5.0)
                    assert owner.tritons["s0"].states == {"a": READY}
                    other.is_owner = True
                assert waiting.done()
                assert not owner.tritons["s0"].states

        play(main)

    @pytest.mark.parametrize("after_s", [0.0, 0.2, 1.3])
    def test_who_asks_for_the_same_at_the_same_time_is_answered_too(self, after_s: float) -> None:
        async def main() -> None:
            async with two() as (owner, other, memory):

                async def load(after_s: float) -> None:
                    await asyncio.sleep(after_s)
                    async with asyncio.timeout(5.0):
                        await other.models.load("a")

                await asyncio.gather(load(0.0), load(after_s))
                assert owner.said == ["load a"]
                assert memory.wanted == {"a": Wish(1)}

        play(main)

    def test_what_another_gateway_asks_for_meanwhile_is_neither_lost_nor_waited_for_in_vain(self) -> None:
        async def main() -> None:
            async with two() as (owner, other, memory):
                third = beside(owner, memory)
                async with running(third, reconciles=True, remembers=True), asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
                    await third.remembering.recall()
                    for bench in (other, third):
                        tasks.create_task(bench.models.load("a"))
                await asyncio.sleep(SOON_S)
                assert memory.wanted == {"a": Wish(1)}
                memory.wanted["a"] = Wish(asked="later")  # somebody's who has not seen what stands
                await owner.models.load("a")
                assert memory.wanted == {"a": Wish(1, asked="later")}
                await asyncio.sleep(5.0)
                assert owner.state.measurements.of("a").answered == "later"

        play(main)

    @pytest.mark.parametrize("other_wish", [Wish(asked="another's"), Wish(1), Wish(asked="an unload's", is_withdrawn=True)])
    def test_who_waits_for_what_has_been_replaced_by_another_is_answered(self, other_wish: Wish) -> None:
        async def main() -> None:
            async with two() as (owner, other, memory):
                owner.is_owner = False
                async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:

                    async def ask() -> None:
                        with pytest.raises(Conflict) if other_wish.is_withdrawn else nullcontext():
                            await other.models.load("a")

                    tasks.create_task(ask())
                    await asyncio.sleep(SOON_S)
                    assert memory.wanted["a"].asked
                    memory.wanted["a"] = other_wish
                    owner.is_owner = True
                assert memory.wanted["a"] == (other_wish if other_wish.is_withdrawn else Wish(1))

        play(main)

    def test_an_unload_that_a_load_has_replaced_does_not_wait_for_that(self) -> None:
        async def main() -> None:
            async with two() as (owner, other, memory):
                owner.tritons["s0"].states["a"] = READY
                owner.tritons["s0"].load_s["a"] = 100.0
                await asyncio.sleep(SOON_S)
                owner.is_owner = False
                async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
                    tasks.create_task(other.models.unload("a"))
                    await asyncio.sleep(SOON_S)
                    memory.wanted["a"] = Wish(asked="another's")
                    owner.is_owner = True

        play(main)

    @pytest.mark.parametrize("is_there", [False, True])
    @pytest.mark.parametrize(("loads", "unloads"), [(0, 0), (0, 1), (1, 0), (1, 1)])
    def test_an_unload_during_a_load_is_not_undone_by_it(self, loads: int, unloads: int, is_there: bool) -> None:
        async def main() -> None:
            async with two() as (owner, other, memory):
                both = (owner, other)
                if is_there:
                    await owner.models.load("a")
                owner.tritons["s0"].load_s["a"] = 20.0
                async with asyncio.TaskGroup() as tasks:

                    async def load() -> None:
                        with pytest.raises(Conflict, match="unloaded by an administrator meanwhile"):
                            await both[loads].models.load("a")

                    tasks.create_task(load())
                    await asyncio.sleep(3.0)
                    await both[unloads].models.unload("a")
                await asyncio.sleep(30.0)
                assert memory.wanted["a"].is_withdrawn
                assert not owner.tritons["s0"].states

        play(main)

    def test_a_load_that_has_not_begun_ends_with_an_unload(self) -> None:
        async def main() -> None:
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

        play(main)

    @pytest.mark.parametrize("told", [0, 1])
    @pytest.mark.parametrize("was", ["load", "unload"])
    def test_are_taken_back_by_a_release(self, told: int, was: str) -> None:
        async def main() -> None:
            async with two(model("a", 60), model("b", 60)) as (owner, other, memory):
                both = (owner, other)
                await (owner.models.load("a") if was == "load" else owner.models.unload("a"))
                await asyncio.sleep(SOON_S)
                await both[told].models.release("a")
                assert memory.wanted == {}
                await asyncio.sleep(SOON_S)
                for name in "aba":
                    await owner.use(name)
                with pytest.raises(ModelNotFound):
                    await other.models.release("nonesuch")

        play(main)

    def test_what_the_store_has_lost_it_is_told_again(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            async with two() as (owner, other, memory):
                await owner.models.unload("a")
                await owner.models.load("b")
                await asyncio.sleep(SOON_S)
                memory.lose_wishes()
                await asyncio.sleep(SOON_S)
                assert owner.state.is_withdrawn("a")
                assert other.state.is_withdrawn("a")
                assert memory.wanted.keys() == {"a", "b"}
                memory.lose_wishes()
                await other.models.release("b")  # before anybody has looked
                assert memory.wanted.keys() == {"a"}
                await asyncio.sleep(SOON_S)
                assert owner.state.wishes.keys() == other.state.wishes.keys() == {"a"}

        with caplog.at_level(logging.WARNING):
            play(main)
        assert [record.getMessage().partition(" was lost")[0] for record in caplog.records] == [
            "what administrators have said of 2 models"
        ] * 2

    def test_hold_after_a_restart(self) -> None:
        async def main() -> None:
            memory = FakeFleetMemory(wanted={"a": Wish(1), "b": Wish(0, is_withdrawn=True), "c": Wish(asked="of before")})
            memory.models["c"] = Measured(40, answered="of before")
            bench = await restarted(memory)
            bench.tritons["s0"].states["b"] = READY
            await bench.models.keep("b")
            async with running(bench, reconciles=True, remembers=True):
                await asyncio.sleep(10)
                assert bench.tritons["s0"].states == {"a": READY}
                assert bench.said == ["load a", "unload b"]

        play(main)

    def test_what_was_not_carried_out_by_one_owner_is_by_the_next(self) -> None:
        async def main() -> None:
            bench = await restarted(FakeFleetMemory(wanted={"a": Wish(asked="of before")}))
            async with running(bench, reconciles=True, remembers=True):
                await asyncio.sleep(10)
                assert bench.said == ["load a"]
                assert bench.state.measurements.known["a"].answered == "of before"

        play(main)

    def test_a_step_stays_with_the_ensemble_that_needs_it(self) -> None:
        async def main() -> None:
            both = model("both", 60, steps=frozenset({"a"}))
            bench = await restarted(FakeFleetMemory(wanted={"a": Wish(is_withdrawn=True)}), model("a"), both)
            async with running(bench, reconciles=True, remembers=True):
                await bench.use("both")
                await asyncio.sleep(10)
                assert bench.said == ["load both"]

        play(main)

    def test_what_was_read_before_one_does_not_stand_after_it(self) -> None:
        class Slow(FakeFleetMemory):
            async def wishes(self) -> Mapping[str, Wish]:
                found = await super().wishes()
                await asyncio.sleep(0.3)
                return found

        async def main() -> None:
            bench = await restarted(Slow())
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(bench.remembering.recall())
                await asyncio.sleep(0.1)
                await bench.models.unload("a")
            assert bench.state.is_withdrawn("a")

        play(main)

    def test_those_of_the_command_line_are_this_processes_own(self) -> None:
        async def main() -> None:
            memory = FakeFleetMemory()
            bench = await restarted(memory)
            async with running(bench, reconciles=True, remembers=True):
                await bench.models.keep("a")
                await bench.models.keep("a")
                assert bench.said == ["load a"]
                assert bench.state.fleet.models["a"].spec.min_copies == 1
                assert not memory.wanted

        play(main)


class TestOutages:
    def test_each_works_on_with_what_it_has_and_says_it_once(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            async with two() as (owner, other, memory):
                await owner.models.unload("b")
                await asyncio.sleep(SOON_S)
                memory.is_away = True
                await owner.use("a")
                await asyncio.sleep(30)
                for bench in (owner, other):
                    with pytest.raises(StoreUnavailable):
                        await bench.models.unload("a")
                assert owner.tritons["s0"].states == {"a": READY}
                with pytest.raises(ModelNotFound):
                    await other.use("b")
                assert len(caplog.records) == 2  # one each
                memory.is_away = False
                await asyncio.sleep(SOON_S)
                assert memory.models["a"].load_s == other.state.measurements.of("a").load_s == 1.0
                memory.is_away = True
                await asyncio.sleep(30)
                assert len(caplog.records) == 4

        with caplog.at_level(logging.WARNING, "control_plane.services.fleet_memory"):
            play(main)

    def test_a_start_without_the_store_forgets_nothing(self) -> None:
        async def main() -> None:
            memory = FakeFleetMemory({"a": Measured(40, load_s=9.0)}, {"b": Wish(is_withdrawn=True)}, is_away=True)
            bench = await restarted(memory)
            async with running(bench, reconciles=True, remembers=True):
                await asyncio.sleep(10)
                memory.is_away = False
                await asyncio.sleep(SOON_S)
                assert bench.state.fleet.models["a"].load_s == memory.models["a"].load_s == 9.0
                with pytest.raises(ModelNotFound):
                    await bench.use("b")

        play(main)
