from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from control_plane.core.errors import DeadlineExceeded, ModelLoadFailed, ModelNotFound, NotSupported, Overloaded, UpstreamUnavailable
from control_plane.core.model import ModelOverride, ModelState, ServedVariant
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.view.catalogue import FleetCatalogue
from tests.unit.fleet.fleet_bench import READY, FleetBench, model, running

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("is_asked_of_triton", [True, False])
async def test_lists_why_the_last_load_of_a_model_has_failed(is_asked_of_triton: bool) -> None:
    bench = FleetBench(model("a"))
    failure = "load failed for model 'a': version 1 is at UNAVAILABLE state: Internal: ValueError: x"
    if is_asked_of_triton:
        bench.tritons["s0"].failures["a"] = ModelLoadFailed(failure)
    else:
        bench.unloadable["a"] = failure
    async with running(bench):
        with pytest.raises(ModelLoadFailed, match="ValueError: x"):
            await bench.models.load("a")
        (listed,) = await bench.models.list_models()
        assert listed.reason == "Internal: ValueError: x"
        index = await FleetCatalogue(bench.state, bench.servers).index()
        assert [(line.name, line.state, line.reason) for line in index] == [("a", ModelState.UNAVAILABLE, failure)]
        bench.tritons["s0"].failures.clear()
        bench.unloadable.clear()
        await bench.models.load("a")
        (listed,) = await bench.models.list_models()
        assert (listed.state, listed.reason) == (READY, "")


async def test_lists_what_there_is_anywhere() -> None:
    async with running(FleetBench(model("a"), model("b", 50), servers=2, budget_bytes=2**30)) as bench:
        bench.tritons["s1"].states["foreign"] = READY
        first = await bench.use("a")
        bench.servers.live["s1"].metrics = b'tidegate_served_variant{model="foreign",reason="named",variant="int8"} 1\n'  # type: ignore[attr-defined]
        listed = await bench.models.list_models()
        assert [each.variant for each in listed] == [None, None, ServedVariant("int8", "named")]
        assert [(each.name, each.state, each.memory_bytes) for each in listed] == [
            ("a", READY, 40),
            ("b", ModelState.UNAVAILABLE, 50),
            ("foreign", READY, None),
        ]
        assert (await bench.models.get("a")).state is READY
        with pytest.raises(ModelNotFound, match="nonesuch"):
            await bench.models.get("nonesuch")
        bench.kill(first)
        assert (await bench.models.get("a")).state is ModelState.UNAVAILABLE
        bench.kill("s1")
        bench.kill("s0")
        with pytest.raises(UpstreamUnavailable, match="crashed"):
            await bench.models.list_models()


async def test_a_server_that_has_just_died_does_not_hide_the_others() -> None:
    async with running(FleetBench(model("a"), servers=2)) as bench:
        bench.tritons["s1"].states["a"] = READY
        bench.tritons["s0"].live = False
        assert (await bench.models.get("a")).state is READY
        bench.tritons["s1"].live = False
        with pytest.raises(UpstreamUnavailable):
            await bench.models.list_models()


@pytest.mark.parametrize("reloads", [True, False])
async def test_on_a_server_that_leaves_before_its_turn_nothing_is_done(reloads: bool) -> None:
    async with running(FleetBench(servers=2)) as bench:
        loads, name = bench.router.loads, await bench.use("a")
        change = loads.reload("a", name) if reloads else loads.unload("a", name, kind=FleetEventKind.UNLOADED, reason="")
        said = list[str]()
        async with asyncio.TaskGroup() as tasks, loads._turns.turn(name):
            tasks.create_task(_told(change, said))
            await asyncio.sleep(0.1)
            bench.kill(name)
            bench.state.left(name)
            del bench.loads[name]
        assert said == [f"server '{name}' has left the fleet"]


@pytest.mark.parametrize("reloads", [True, False])
async def test_a_change_whose_caller_leaves_goes_on_and_the_next_one_waits_for_it(reloads: bool) -> None:
    async with running(FleetBench()) as bench:
        await bench.use("a")
        loads, began_s = bench.router.loads, bench.now_s()
        bench.tritons["s0"].load_s["a"] = bench.tritons["s0"].drain_s = 5.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await (loads.reload("a", "s0") if reloads else loads.unload("a", "s0", kind=FleetEventKind.UNLOADED, reason=""))
        await bench.use("b")
        assert bench.said == ["load a", "load a" if reloads else "unload a", "load b"]
        assert bench.now_s() >= began_s + 6.0
        assert bench.told()[1:] == [("loaded" if reloads else "unloaded", "a"), ("loaded", "b")]


async def test_what_has_been_built_is_loaded_anew_wherever_it_is_and_nowhere_else() -> None:
    ensemble, other = model("ensemble", 40, steps=frozenset({"encoder"})), model("other", 10)
    async with running(FleetBench(ensemble, model("encoder", 10), other, servers=2)) as bench:
        where, others = await bench.use("ensemble"), await bench.use("other")
        loads = {name: len(triton.loads) for name, triton in bench.tritons.items()}
        await bench.models.reload_built("encoder")
        assert bench.tritons[where].loads[loads[where] :] == ["ensemble"]
        assert bench.router.ready() == {"ensemble", "encoder", "other"}
        bench.tritons[others].failures["other"] = ModelLoadFailed("no such file")
        await bench.models.reload_built("other")
        assert bench.tritons[others].loads[-1] == "other"


async def _told(change: Coroutine[Any, Any, None], said: list[str]) -> None:
    try:
        await change
    except UpstreamUnavailable as exc:
        said.append(str(exc))


class TestLoading:
    async def test_pins_it_so_that_others_do_not_take_its_place(self) -> None:
        async with running(FleetBench(model("a", 60), model("b", 60)), reconciles=True) as bench:
            await bench.models.load("a")
            assert bench.state.fleet.models["a"].spec.min_replicas == 1
            await asyncio.sleep(100)
            with pytest.raises(Overloaded, match="no room for 'b'"):
                await bench.use("b")
            bench.kill("s0")
            bench.bring_up("s0")
            await asyncio.sleep(10)
            assert bench.router.ready() == {"a"}

    async def test_of_what_was_to_be_kept_what_finds_no_room_is_refused_at_once(self) -> None:
        async with running(FleetBench(model("a", 60), model("b", 60))) as bench:
            await bench.models.keep("a", waits_for_room=False)
            with pytest.raises(Overloaded, match="no room for 'b'"):
                await bench.models.keep("b", waits_for_room=False)
            assert bench.now_s() == pytest.approx(1.0)
            assert bench.state.fleet.models["b"].spec.min_replicas == 0

    async def test_beside_what_is_to_stay_it_is_refused_at_once_with_the_names_of_that(self) -> None:
        names = ("one", "two", "three", "four")
        async with running(FleetBench(*(model(name, 25) for name in names), model("a", 30))) as bench:
            for name in names:
                await bench.models.load(name)
            began_s = bench.now_s()
            with pytest.raises(Overloaded, match=r"no room for 'a' beside .*: four, one, three and 1 more; .* release"):
                await bench.models.load("a")
            assert bench.now_s() == began_s
            for name in names[:2]:
                await bench.models.release(name)
            await bench.models.load("a")
            assert bench.router.ready() == {"a", "three", "four"}

    async def test_waits_for_as_long_as_loads_may_take_not_as_requests_may_wait(self) -> None:
        bench = FleetBench(wait_s=5.0)
        bench.tritons["s0"].load_s["a"] = 100.0
        async with running(bench):
            await bench.models.load("a")
            assert bench.now_s() == pytest.approx(100.0)

    async def test_a_failure_is_told_at_once_and_the_next_try_does_not_wait(self) -> None:
        bench = FleetBench()
        bench.tritons["s0"].failures["a"] = ModelLoadFailed("its weights are missing")
        async with running(bench):
            for began_s in (0.0, 1.0):
                assert bench.now_s() == pytest.approx(began_s)
                with pytest.raises(ModelLoadFailed, match="its weights are missing"):
                    await bench.models.load("a")
                assert bench.state.fleet.models["a"].quarantined_until_s - bench.now_s() == pytest.approx(2.0)
            assert bench.state.fleet.models["a"].spec.min_replicas == 0
            bench.tritons["s0"].failures.clear()
            await bench.models.load("a")
            assert bench.now_s() == pytest.approx(3.0)

    async def test_where_it_is_there_it_is_loaded_anew_on_every_server(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            for name, triton in bench.tritons.items():
                triton.states["a"] = READY
                await bench.loads[name].poll_index()
            await bench.models.load("a")
            assert [triton.loads for triton in bench.tritons.values()] == [["a"], ["a"]]

    async def test_everywhere_it_comes_to_every_server_and_to_those_that_come_later(self) -> None:
        async with running(FleetBench(servers=3), reconciles=True) as bench:
            bench.kill("s2")
            await bench.models.load_everywhere("a")
            assert [bench.tritons[name].states for name in ("s0", "s1")] == [{"a": READY}] * 2
            bench.bring_up("s2")
            await asyncio.sleep(10)
            assert bench.tritons["s2"].states == {"a": READY}
            await bench.models.load("a")
            assert bench.state.fleet.models["a"].spec.min_replicas == 1

    async def test_everywhere_but_where_others_are_to_stay_is_refused_and_made_up_for_when_they_go(self) -> None:
        async with running(FleetBench(model("a", 60), model("b", 60), servers=2), reconciles=True) as bench:
            await bench.models.load("b")
            (holder,) = [name for name, triton in bench.tritons.items() if triton.states]
            with pytest.raises(Overloaded, match=f"'a' is not loaded on {holder}, which get it when they have room"):
                await bench.models.load_everywhere("a")
            assert bench.tritons[holder].states == {"b": READY}
            await bench.models.release("b")
            await asyncio.sleep(100)
            assert all(triton.states == {"a": READY} for triton in bench.tritons.values())

    @pytest.mark.parametrize(("size", "said"), [(40, ["load a", "load a"]), (60, ["load a", "unload a", "load a"])])
    async def test_two_of_it_are_never_more_than_there_is_room_for(self, size: int, said: list[str]) -> None:
        async with running(FleetBench(model("a", size))) as bench:
            await bench.models.load("a")
            await bench.models.load("a")
            assert bench.said == said
            assert len(bench.state.fleet.ready_replicas("a")) == 1

    @pytest.mark.parametrize(
        ("name", "override", "error"),
        [("nonesuch", None, ModelNotFound), ("huge", None, Overloaded), ("a", ModelOverride("{}"), NotSupported)],
    )
    async def test_what_cannot_be_done_is_refused(self, name: str, override: ModelOverride | None, error: type[Exception]) -> None:
        async with running(FleetBench(model("a"), model("huge", 101))) as bench:
            with pytest.raises(error):
                await bench.models.load(name, override)
            assert not bench.said


class TestUnloading:
    async def test_it_goes_from_all_servers_and_stays_away_until_it_is_loaded(self) -> None:
        async with running(FleetBench(model("a", min_replicas=2), servers=2), reconciles=True) as bench:
            await asyncio.sleep(5.0)
            assert bench.said == ["load a", "load a"]
            await bench.models.unload("a")
            await asyncio.sleep(20.0)
            assert bench.router.ready() == set()
            assert bench.state.fleet.models["a"].spec.min_replicas == 0
            assert sorted(bench.said) == ["load a", "load a", "unload a", "unload a"]
            with pytest.raises(ModelNotFound):
                await bench.use("a")
            await bench.models.load("a")
            assert await bench.use("a") in ("s0", "s1")

    @pytest.mark.parametrize("began_s_before", [0.0, 0.5])
    async def test_a_load_under_way_is_undone(self, began_s_before: float) -> None:
        async with running(FleetBench(), reconciles=True) as bench:
            bench.router.loads.load_if_none_is("a")
            await asyncio.sleep(began_s_before)
            await bench.models.unload("a")
            await asyncio.sleep(5.0)
            assert not bench.tritons["s0"].states

    async def test_one_that_waits_for_its_turn_is_not_begun(self) -> None:
        async with running(FleetBench()) as bench:
            bench.router.loads.load_if_none_is("a")
            bench.router.loads.load_if_none_is("b")
            await asyncio.sleep(0.5)
            await bench.models.unload("b")
            assert bench.said == ["load a"]
            assert bench.server().replicas.keys() == {"a"}

    async def test_requests_that_are_there_finish(self) -> None:
        async with running(FleetBench()) as bench:
            claim = await bench.claim("a")
            await bench.models.unload("a")
            claim.release(answered=True)
            assert claim.replica.in_flight == 0

    async def test_a_foreign_one_goes_too_and_an_unknown_one_is_nothing(self) -> None:
        async with running(FleetBench()) as bench:
            bench.tritons["s0"].states["foreign"] = READY
            await bench.loads["s0"].poll_index()
            await bench.models.unload("foreign")
            await bench.models.unload("nonesuch")
            assert bench.said == ["unload foreign"]

    async def test_one_that_could_not_be_unloaded_is_told(self) -> None:
        async with running(FleetBench()) as bench:
            await bench.use("a")
            bench.is_leader = False
            with pytest.raises((UpstreamUnavailable, DeadlineExceeded)):
                await bench.models.unload("a")
