"""Loads that fail, and requests for what has failed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, Overloaded, UpstreamUnavailable
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import ModelFacts
from control_plane.fleet.domain.placement.placement import Refusal
from tests.fakes import FakeRepository
from tests.unit.fleet.fleet_bench import READY, FleetBench, model, running
from tests.unit.fleet.routing.model_router.bench import FAILS, refused

pytestmark = pytest.mark.virtual_time


class TestFailures:
    async def test_one_is_told_and_left_alone_for_longer_and_longer_and_tried_again_after(self) -> None:
        bench = FleetBench()
        bench.tritons["s0"].failures["a"] = FAILS
        bench.tritons["s0"].load_s["a"] = 0.5
        async with running(bench):
            await refused(bench.use("a", 60.0), r"is not tried again yet: its weights are missing; try again in 2\.0 s")
            assert bench.now_s() == 0.5
            await asyncio.sleep(1.9)
            assert await refused(bench.use("a", 60.0), "its weights are missing") == 1.0
            await asyncio.sleep(0.2)
            await refused(bench.use("a", 60.0), "failed to load and is being tried again: its weights are missing")
            await asyncio.sleep(0.6)
            failed = [event for event in bench.state.events.latest if event.kind is FleetEventKind.FAILED]
            assert [(event.model, event.server, event.reason) for event in failed] == [("a", "s0", "its weights are missing")] * 2
            assert await refused(bench.use("a", 60.0)) == pytest.approx(4, abs=0.2)
            assert bench.now_s() == pytest.approx(3.2), "nobody has waited since"
            assert bench.tritons["s0"].loads == ["a", "a"]
            bench.tritons["s0"].failures.clear()
            await asyncio.sleep(4)
            await refused(bench.use("a", 60.0), "is being tried again")
            await asyncio.sleep(0.6)
            assert await bench.use("a", 0.001) == "s0"
            assert bench.told()[-1] == ("loaded", "a")

    async def test_who_waited_for_it_is_told_of_the_failure_and_not_of_a_load_under_way(self) -> None:
        bench = FleetBench()
        bench.tritons["s0"].failures["a"] = FAILS
        async with running(bench):
            await refused(bench.use("a", 2.5), "its weights are missing")
            assert bench.now_s() == 1.0

    async def test_after_a_success_the_delay_begins_anew(self) -> None:
        bench = FleetBench()
        control = bench.tritons["s0"]
        async with running(bench):
            control.failures["a"] = FAILS
            await refused(bench.use("a"), r"again in 2\.0 s")
            control.failures.clear()
            await asyncio.sleep(3)
            await refused(bench.use("a"), "is being tried again")
            await asyncio.sleep(2)
            await bench.router.loads.unload("a", "s0", kind=FleetEventKind.UNLOADED, reason="")
            control.failures["a"] = FAILS
            control.load_s["a"] = 0.2
            await refused(bench.use("a", 2.1), r"again in 2\.0 s")

    async def test_who_has_another_replica_is_served_while_one_more_cannot_be_loaded(self) -> None:
        bench = FleetBench(servers=2)
        async with running(bench):
            has = await bench.use("a")
            for triton in bench.tritons.values():
                triton.failures["a"] = FAILS
            bench.router.loads.load_if_none_is("a")
            await asyncio.sleep(2)
            assert bench.told()[-1] == ("failed", "a")
            assert await bench.use("a", 0.001) == has

    async def test_one_whose_place_another_does_not_leave_is_not_blamed_and_is_loaded_elsewhere(self) -> None:
        bench = FleetBench(*(model(name, 60) for name in "abc"), servers=2, wait_s=200.0)
        async with running(bench):
            stuck, other = await bench.use("a"), await bench.use("b")
            bench.tritons[stuck].drain_s = 1e6  # a stream that goes on
            await asyncio.sleep(100)
            for _ in range(5):
                await bench.use("b")
            began_s = bench.now_s()
            assert await bench.use("c", 200.0) == other
            assert 60.0 < bench.now_s() - began_s < 70.0
            assert bench.state.measurements.why_failed("c") is None

    async def test_a_server_on_which_nothing_can_be_loaded_keeps_no_model_from_the_others(self) -> None:
        """It has always more room than they have."""
        bench = FleetBench(*(model(name, 20) for name in "abcd"), servers=2)
        bench.tritons["s0"].failures |= dict.fromkeys("abcd", FAILS)
        async with running(bench):
            for name in "abcd":
                for _ in range(2):  # the first may be told of the failure, and begins the next try
                    with suppress(Overloaded):
                        await bench.use(name, 60.0)
                    await asyncio.sleep(4.0)
                assert await bench.use(name, 20.0) == "s1"
            assert bench.tritons["s0"].loads.count("d") <= 1
            assert len(bench.server("s0").failed_only_here) <= 3

    async def test_one_whose_server_is_frozen_meanwhile_is_not_blamed(self) -> None:
        bench = FleetBench()
        triton, server = bench.tritons["s0"], bench.servers.members["s0"]
        triton.failures["a"] = DeadlineExceeded("Triton has not answered")
        triton.load_s["a"] = 5.0
        async with running(bench), asyncio.TaskGroup() as tasks:
            request = tasks.create_task(bench.use("a", 20.0))
            await asyncio.sleep(0.5)
            server.fell_silent()
            await asyncio.sleep(5.0)
            assert bench.state.measurements.why_failed("a") is None
            triton.failures.clear()
            server.heard()
            assert await request == "s0"

    async def test_for_one_that_has_never_been_loaded_nothing_goes_a_second_time(self) -> None:
        bench = FleetBench(*(model(name, 60) for name in "ab"))
        async with running(bench):
            await bench.use("b")
            await asyncio.sleep(100)
            bench.tritons["s0"].failures["a"] = FAILS
            await refused(bench.use("a"), "its weights are missing")
            assert bench.told(FleetEventKind.EVICTED) == [("evicted", "b")], "nobody could know"
            await bench.use("b")
            await asyncio.sleep(100)
            await refused(bench.use("a"), "'a' failed to load, and nothing is unloaded to try it again: its weights are missing")
            assert bench.replica("b").state is READY
            assert bench.told(FleetEventKind.EVICTED) == [("evicted", "b")]
            await bench.models.unload("b")
            await refused(bench.use("a"), "is being tried again")
            await asyncio.sleep(0.1)
            assert bench.said[-1] == "load a", "there is room"

    async def test_many_who_ask_for_it_in_vain_do_not_have_the_servers_looked_through_each(self) -> None:
        bench = FleetBench(*(model(name, 60) for name in "ab"))
        async with running(bench):
            bench.tritons["s0"].failures["a"] = FAILS
            await refused(bench.use("a"), "its weights are missing")
            await bench.use("b")
            await asyncio.sleep(100)
            looked, bring = list[str](), bench.router.loads.load_replica

            def counted(facts: ModelFacts, **options: Any) -> Refusal | None:
                looked.append(facts.name)
                return bring(facts, **options)

            bench.router.loads.load_replica = counted  # type: ignore[method-assign]
            for _ in range(100):
                await refused(bench.use("a"), "nothing is unloaded to try it again")
            assert len(looked) == 2, "whether it would be sooner elsewhere, and whether there is room"
            await asyncio.sleep(1.0)
            await refused(bench.use("a"))
            assert len(looked) == 4

    @pytest.mark.parametrize("how", ["it has been loaded before", "an administrator says so", "its files have changed"])
    async def test_again_in_the_place_of_others_where(self, how: str) -> None:
        bench = FleetBench(*(model(name, 60) for name in "ab"))
        async with running(bench):
            if how == "it has been loaded before":
                await bench.use("a")
            await bench.use("b")
            await asyncio.sleep(100)
            bench.tritons["s0"].failures["a"] = FAILS
            await refused(bench.use("a"), "its weights are missing")
            await bench.use("b")
            await asyncio.sleep(100)
            bench.tritons["s0"].failures.clear()
            if how == "an administrator says so":
                await bench.models.load("a")
            if how == "its files have changed":
                bench.described.models["a"] = replace(bench.described.models["a"], changed_ns=1)
                await bench.files.describe()
                await bench.use("a")
            if how == "it has been loaded before":
                await refused(bench.use("a"), "is being tried again")
                await asyncio.sleep(3)
            assert bench.replica("a").state is READY
            assert bench.told(FleetEventKind.EVICTED)[-1] == ("evicted", "b")

    async def test_for_one_that_no_server_could_load_by_its_files_nothing_goes_at_all(self) -> None:
        bench = FleetBench(*(model(name, 60) for name in "ab"))
        bench.unloadable["a"] = "1/model.py is missing"
        async with running(bench):
            await bench.use("b")
            await asyncio.sleep(100)
            began_s = bench.now_s()
            await refused(bench.use("a", 60.0), r"1/model\.py is missing; try again in 2\.0 s")
            assert bench.now_s() == began_s
            assert bench.replica("b").state is READY
            assert bench.said == ["load b"]
            assert bench.told()[-1] == ("failed", "a")

    async def test_what_is_no_error_of_ours_is_the_models_too_and_ends_nothing_else(self) -> None:
        bench = FleetBench()
        full = {"a": OSError("no space left on device")}
        bench.units["s0"]._repository = FakeRepository(["a", "b"], failures=full)  # type: ignore[arg-type]
        async with running(bench):
            await refused(bench.use("a", 5.0), "no space left on device")
            assert await bench.use("b") == "s0"

    @pytest.mark.parametrize("error", [UpstreamUnavailable("connection refused"), Overloaded("it does not fit any more")])
    async def test_where_it_was_not_the_models_fault_it_is_tried_again_soon_but_not_at_once(self, error: ControlPlaneError) -> None:
        bench = FleetBench()
        begun: list[float] = []

        async def load_after_evicting(*_: object) -> None:
            begun.append(bench.now_s())
            if len(begun) < 4:
                raise error
            bench.tritons["s0"].states["a"] = READY
            await bench.loads["s0"].poll_index()

        bench.loads["s0"].load_after_evicting = load_after_evicting  # type: ignore[method-assign]
        async with running(bench):
            assert await bench.use("a", 10.0) == "s0"
            assert begun == pytest.approx([0.0, 0.5, 1.0, 1.5])
            assert bench.told() == [("loaded", "a")]
