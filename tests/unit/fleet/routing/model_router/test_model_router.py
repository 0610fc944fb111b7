"""Requests that need loads, over fake Tritons in virtual time; one server's plans are tested in
`test_load_plans`.
"""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed, ModelNotFound, UpstreamUnavailable
from control_plane.core.model import ModelState
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.memory import DesiredState
from control_plane.fleet.routing.workloads import RoutingHint
from tests.unit.fleet.fleet_bench import LOADING, READY, FleetBench, call, model, running
from tests.unit.fleet.routing.model_router.bench import FAILS, refused

pytestmark = pytest.mark.virtual_time


class TestColdModels:
    async def test_many_requests_are_one_load(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            served = await asyncio.gather(*(bench.use("a") for _ in range(10)))
            assert len(set(served)) == 1
            assert bench.said == ["load a"]
            assert bench.told() == [("loaded", "a")]
            assert bench.now_s() == 1.0

    async def test_a_burst_has_as_many_replicas_as_shorten_it(self) -> None:
        async with running(FleetBench(servers=3)) as bench:
            servers = bench.state.fleet.servers.values()
            async with asyncio.TaskGroup() as tasks:
                waiting = [tasks.create_task(bench.use("a")) for _ in range(40)]
                await asyncio.sleep(0.5)
                counted = [at.replicas["a"].in_flight for at in servers]
            assert sum(counted) == 40
            assert min(counted) > 10
            assert {each.result() for each in waiting} == {at.name for at in servers}
            assert bench.said == ["load a"] * 3
            assert all(at.replicas["a"].in_flight == 0 and at.work_s == 0.0 for at in servers)

    async def test_a_load_goes_on_when_all_who_wait_for_it_leave(self) -> None:
        async with running(FleetBench()) as bench:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await asyncio.gather(bench.use("a"), bench.use("a"))
            await asyncio.sleep(0.6)
            assert bench.replica("a").state is READY
            assert bench.replica("a").in_flight == 0
            assert await bench.use("a", 0.001) == "s0"

    async def test_who_cannot_wait_that_long_is_told_when_to_come_again_and_it_is_loaded_all_the_same(self) -> None:
        async with running(FleetBench()) as bench:
            bench.tritons["s0"].load_s["a"] = 10.0
            await bench.use("a")
            await bench.models.unload("a")
            await bench.remembering.wish("a", None)
            # Measured: 10 s, less what has passed, and never less than a second.
            assert await refused(bench.use("a", 4.0), r"'a' is being loaded, which is expected to take 10\.\d s") == pytest.approx(
                10, abs=0.1
            )
            await asyncio.sleep(7)
            assert await refused(bench.use("a", 1.0)) == pytest.approx(3, abs=0.1)
            await asyncio.sleep(2.9)
            assert await refused(bench.use("a", 0.01)) == 1.0
            await asyncio.sleep(0.2)
            assert await bench.use("a", 0.001) == "s0"

    @pytest.mark.parametrize(("wait_s", "timeout_s", "ends_s"), [(5.0, 1000.0, 5.0), (30.0, 7.0, 7.0)])
    async def test_a_load_that_takes_longer_than_expected_is_waited_for_until_the_deadline(
        self, wait_s: float, timeout_s: float, ends_s: float
    ) -> None:
        async with running(FleetBench(wait_s=wait_s)) as bench:
            bench.tritons["s0"].load_s["a"] = 60.0
            assert await refused(bench.use("a", timeout_s)) == 1.0
            assert bench.now_s() == pytest.approx(ends_s, abs=0.01)

    async def test_wanted_twice_it_is_loaded_once(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            bench.router.loads.load_if_none_is("a")
            bench.router.loads.load_if_none_is("a")
            await asyncio.sleep(0.5)
            bench.router.loads.load_if_none_is("a")
            await asyncio.sleep(5.0)
            assert bench.said == ["load a"]

    async def test_what_is_nowhere_is_not_found_and_costs_nothing(self) -> None:
        async with running(FleetBench()) as bench:
            with pytest.raises(ModelNotFound, match="unknown model: 'nonesuch'"):
                await bench.use("nonesuch")
            assert not bench.said

    async def test_before_and_after_it_runs_nothing_is_loaded(self) -> None:
        bench = FleetBench()
        with pytest.raises(UpstreamUnavailable, match="starts or stops"):
            await bench.use("a")
        async with running(bench):
            await bench.use("a")
        assert await bench.use("a") == "s0"
        with pytest.raises(UpstreamUnavailable, match="starts or stops"):
            await bench.use("b")

    async def test_of_loads_that_wait_for_their_turn_the_time_is_reckoned_anew_when_one_ends(self) -> None:
        """A model's first load is expected to take two seconds. That one took a tenth: no reason to refuse
        requests for the next one."""
        bench = FleetBench(*(model(name, 10) for name in "abcd"))
        bench.tritons["s0"].load_s |= {"a": 0.1, "b": 0.1, "c": 0.1, "d": 3.0}
        async with running(bench):
            await bench.use("a")
            assert await bench.use("b", 2.1) == "s0"
            await asyncio.gather(bench.use("c", 2.1), bench.use("d", 10))
            assert bench.server().loads_until_s == pytest.approx(bench.now_s(), abs=0.1)


class TestRoom:
    async def test_the_second_of_two_loads_that_queue_finds_its_victims_anew(self) -> None:
        """When both are asked for there is room for one of them."""
        async with running(FleetBench(model("a"), model("b"), model("c"))) as bench:
            await bench.use("a")
            await asyncio.sleep(100)
            began_s = bench.now_s()
            assert await asyncio.gather(bench.use("b"), bench.use("c")) == ["s0", "s0"]
            assert bench.now_s() - began_s < 2.6, "it was planned when it was its turn"
            assert bench.said == ["load a", "load b", "unload a", "load c"]
            assert bench.told() == [("loaded", "a"), ("loaded", "b"), ("evicted", "a"), ("loaded", "c")]
            assert bench.state.events.latest[2].reason == "for 'c', which is asked for"

    async def test_while_all_is_in_use_it_waits_for_a_release(self) -> None:
        async with running(FleetBench(model("a", 60), model("b", 60))) as bench:
            async with asyncio.TaskGroup() as tasks:
                await bench.use("a")
                await asyncio.sleep(100)
                began_s = bench.now_s()
                tasks.create_task(bench.use("a", for_s=8))
                await asyncio.sleep(0)
                await bench.use("b", 20)
            assert 9.0 < bench.now_s() - began_s < 10.0
            assert bench.said == ["load a", "unload a", "load b"]

    async def test_who_would_wait_longer_than_it_may_is_told_why(self) -> None:
        async with running(FleetBench(model("a", 60), model("b", 60), model("huge", 101))) as bench:
            claim = await bench.claim("a")
            await asyncio.sleep(100)
            await refused(bench.use("b", 3.0), "no room for 'b' while all that is loaded is in use")
            claim.release(answered=True)
            assert await refused(bench.use("huge", 3.0), "'huge' needs 101 bytes") >= 1.0
            assert bench.said == ["load a"]

    async def test_an_eviction_that_did_not_happen_is_not_told(self) -> None:
        async with running(FleetBench(model("a", 60), model("b", 60))) as bench:
            await bench.use("a")
            await asyncio.sleep(100)
            bench.is_leader = False
            await refused(bench.use("b", 3.0))
            assert bench.told() == [("loaded", "a")]


class TestServersComeAndGo:
    async def test_requests_go_to_the_one_that_is_left(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            for name, triton in bench.tritons.items():
                triton.states["a"] = READY
                await bench.loads[name].poll_index()
            bench.kill("s0")
            assert [await bench.use("a", 0.001) for _ in range(3)] == ["s1"] * 3

    async def test_who_waits_for_a_load_on_one_that_dies_gets_it_from_another(self) -> None:
        async with running(FleetBench(servers=2)) as bench, asyncio.TaskGroup() as tasks:
            request = tasks.create_task(bench.use("a", 10.0))
            await asyncio.sleep(0.5)
            (first,) = [name for name, triton in bench.tritons.items() if triton.loads]
            bench.kill(first)
            assert await request != first
            assert bench.now_s() < 3.0

    async def test_what_a_server_says_that_it_lacks_is_loaded_again(self) -> None:
        async with running(FleetBench()) as bench:
            claim = await bench.claim("a")
            bench.tritons["s0"].states.clear()
            claim.release(answered=False)
            bench.router.note_missing(claim)
            bench.router.note_missing(claim)
            assert await bench.use("a") == "s0"
            assert bench.told() == [("loaded", "a"), ("lost", "a"), ("loaded", "a")]
            bench.router.note_missing(claim)
            assert bench.replica("a").state is READY, "that is another replica"

    async def test_a_replica_whose_load_hangs_does_not_keep_requests_from_one_that_is_ready(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            bench.tritons["s1"].states["a"] = READY
            await bench.loads["s1"].poll_index()
            bench.tritons["s0"].states["a"] = LOADING
            await bench.loads["s0"].poll_index()
            await asyncio.sleep(60)
            began_s = bench.now_s()
            for draw in (0.0, 0.5, 0.99):
                bench.router._draw = lambda draw=draw: draw  # type: ignore[misc]
                assert await bench.use("a", 5.0) == "s1"
            assert bench.now_s() == began_s

    async def test_more_replicas_are_loaded_where_one_has_too_much_to_do(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            await bench.use("a")
            await bench.use("a", for_s=10)
            await asyncio.gather(*(bench.use("a", for_s=10) for _ in range(8)))
            assert sorted(bench.said) == ["load a", "load a"]

    async def test_one_more_replica_is_loaded_where_one_is_never_idle_though_its_requests_were_thought_fast(self) -> None:
        bench = FleetBench(servers=2)
        turns = {name: asyncio.Lock() for name in bench.tritons}

        async def keep_asking() -> None:
            while True:
                claim = await bench.claim("a")
                async with turns[claim.server.name]:
                    await asyncio.sleep(0.05)
                claim.release(answered=True)

        async with running(bench):
            await bench.use("a", for_s=0.01)
            callers = [asyncio.get_running_loop().create_task(keep_asking()) for _ in range(64)]
            await asyncio.sleep(5.0)
            assert sorted(bench.said) == ["load a", "load a"]
            assert bench.state.fleet.models["a"].service_s == pytest.approx(0.05, rel=0.01)
            for caller in callers:
                caller.cancel()
            await asyncio.wait(callers)


class TestAdministrators:
    async def test_what_is_withdrawn_is_not_found_until_it_is_offered_again(self) -> None:
        async with running(FleetBench()) as bench:
            await bench.use("a")
            bench.state.apply_wishes({"a": DesiredState(is_suspended=True)})
            with pytest.raises(ModelNotFound, match="'a'"):
                await bench.use("a")
            bench.state.apply_wishes({})
            assert await bench.use("a") == "s0"

    async def test_ready_are_those_that_can_be_used_now(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            first = await bench.use("a")
            bench.router.loads.load_if_none_is("b")
            await asyncio.sleep(0.5)
            assert bench.router.ready() == {"a"}
            bench.kill(first)
            assert bench.router.ready() == set()

    async def test_taking_out_waits_for_the_load_before_it_and_is_told(self) -> None:
        async with running(FleetBench()) as bench:
            await bench.use("a")
            bench.router.loads.load_if_none_is("b")
            await asyncio.sleep(0.1)
            await bench.router.loads.unload("a", "s0", kind=FleetEventKind.UNLOADED, reason="so")
            assert bench.said == ["load a", "load b", "unload a"]
            assert bench.told()[-1] == ("unloaded", "a")

    @pytest.mark.parametrize(
        ("error", "says"), [(FAILS, "its weights are missing"), (DeadlineExceeded("it hangs"), "'a' was not loaded within 300 s")]
    )
    async def test_bringing_ends_with_the_first_failure(self, error: ControlPlaneError, says: str) -> None:
        bench = FleetBench()
        bench.tritons["s0"].failures["a"] = error
        async with running(bench):
            with pytest.raises(ModelLoadFailed, match=says):
                await bench.router.ensure_loaded("a", deadline_s=300.0)
            assert bench.now_s() == 1.0


class TestElsewhere:
    """Replicas that are not where the view has them."""

    async def test_a_model_whose_only_replica_is_on_an_ejected_server_is_loaded_on_another(self) -> None:
        async with running(FleetBench(servers=3), reconciles=True) as bench:
            first = await bench.use("a")
            for _ in range(5):
                claim = await bench.claim("a")
                claim.release(answered=False)
                bench.state.ejection.failed(claim)
            await asyncio.sleep(1.0)
            assert bench.server(first).is_ejected
            assert await bench.use("a") != first
            assert bench.said == ["load a", "load a"]

    async def test_requests_of_a_pool_have_their_model_loaded_there_though_an_idle_replica_is_elsewhere(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            for name, pool in {"s0": "short", "s1": "long"}.items():
                bench.server(name).pool = pool
                bench.state.fleet.add_server(bench.server(name))
            for pool, expected in {"short": "s0", "long": "s1"}.items():
                claim = await bench.router.acquire(call("a"), deadline_s=bench.now_s() + 20.0, hint=RoutingHint(pool))
                assert claim.server.name == expected
                claim.release(answered=True)
            assert bench.said == ["load a", "load a"]

    async def test_who_comes_while_its_model_is_unloaded_waits_for_that(self) -> None:
        async with running(FleetBench()) as bench, asyncio.TaskGroup() as tasks:
            bench.tritons["s0"].drain_s = 5.0
            await bench.use("a")
            claim = await bench.claim("a")
            tasks.create_task(bench.router.loads.unload("a", "s0", kind=FleetEventKind.UNLOADED, reason=""))
            await asyncio.sleep(0.1)
            assert bench.replica("a").state is ModelState.UNLOADING
            claim.release(answered=True)
            assert await bench.use("a", 8.0) == "s0"
