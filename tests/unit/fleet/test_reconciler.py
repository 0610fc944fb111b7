from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import Overloaded, UpstreamFailed, UpstreamUnavailable
from control_plane.core.model import ModelVersion
from control_plane.fleet.domain.event import FleetEventKind
from tests.fakes import FakeUpstream
from tests.unit.fleet.fleet_bench import READY, FleetBench, model, running

pytestmark = pytest.mark.virtual_time


async def test_what_is_to_be_there_is_loaded_without_a_request() -> None:
    async with running(FleetBench(model("a", min_replicas=1), model("b")), reconciles=True) as bench:
        await asyncio.sleep(2.0)
        assert bench.said == ["load a"]
        assert bench.router.ready() == {"a"}


async def test_each_replica_is_on_a_server_of_its_own() -> None:
    async with running(FleetBench(model("a", min_replicas=2), servers=3), reconciles=True) as bench:
        await asyncio.sleep(5.0)
        assert bench.said == ["load a", "load a"]
        assert len(bench.state.fleet.holders["a"]) == 2


async def test_a_busy_model_grows_within_its_pool_and_keeps_a_replica_in_each() -> None:
    async with running(FleetBench(model("a"), model("b", 90), servers=4), reconciles=True) as bench:
        for number, at in enumerate(list(bench.state.fleet.servers.values())):
            at.pool = "short" if number < 2 else "long"
            bench.state.fleet.add_server(at)
        bench.tritons["s0"].states["a"] = bench.tritons["s1"].states["b"] = READY
        await asyncio.sleep(5.0)
        facts, claim = bench.state.fleet.models["a"], bench.state.reserve("b", "s1")
        facts.rate_fast, facts.last_used_s = 5.0 / facts.service_s, bench.now_s()
        await asyncio.sleep(3.0)
        assert bench.state.fleet.holders["a"].keys() == {"s0"}
        assert claim is not None
        claim.release(answered=True)
        await asyncio.sleep(3.0)
        assert bench.state.fleet.holders["a"].keys() == {"s0", "s1"}
        bench.tritons["s2"].states["a"] = READY
        await asyncio.sleep(600.0)
        assert [bench.server(name).pool for name in sorted(bench.state.fleet.holders["a"])] == ["short", "long"]


async def test_only_the_leader_begins_anything() -> None:
    bench = FleetBench(model("a", min_replicas=1), model("b"))
    bench.is_leader = False
    async with running(bench, reconciles=True):
        bench.tritons["s0"].states["b"] = READY
        await asyncio.sleep(5.0)
        assert not bench.said
        assert bench.state.fleet.models["a"].quarantined_until_s < 0, "nor has it tried"
        assert bench.server().replicas.keys() == {"b"}, "but it looks"
        bench.is_leader = True
        await asyncio.sleep(2.0)
        assert bench.said == ["load a"]


async def test_what_others_load_and_unload_is_found_within_a_tick() -> None:
    async with running(FleetBench(), reconciles=True) as bench:
        bench.tritons["s0"].states["a"] = READY
        await asyncio.sleep(0.6)
        assert await bench.use("a", 0.001) == "s0"
        bench.tritons["s0"].states.clear()
        await asyncio.sleep(0.6)
        assert not bench.server().replicas


async def test_what_was_on_a_server_that_dies_is_loaded_elsewhere_and_again_there_is_room() -> None:
    async with running(FleetBench(model("a", min_replicas=1), servers=2), reconciles=True) as bench:
        await asyncio.sleep(3.0)
        (first,) = bench.state.fleet.holders["a"]
        bench.kill(first)
        await asyncio.sleep(3.0)
        (second,) = bench.state.fleet.holders["a"]
        assert second != first
        bench.bring_up(first)
        await asyncio.sleep(3.0)
        assert bench.said == ["load a", "load a"]


async def test_folders_that_come_and_go_are_known_within_seconds() -> None:
    async with running(FleetBench(model("a")), reconciles=True) as bench:
        await asyncio.sleep(1.0)
        bench.described.models = {"new": model("new", min_replicas=1)}
        await asyncio.sleep(8.0)
        assert bench.state.fleet.models.keys() == {"new"}
        assert bench.router.ready() == {"new"}


async def test_a_server_that_says_nothing_keeps_nobody_from_the_others() -> None:
    async with running(FleetBench(servers=2), reconciles=True) as bench:
        bench.tritons["s0"].failures["index"] = UpstreamFailed("odd")
        bench.tritons["s1"].states["a"] = READY
        await asyncio.sleep(0.6)
        assert await bench.use("a", 0.001) == "s1"


async def turns_of_a_tick(models: int) -> int:
    """How often others get their turn while the leader reconciles so many models."""
    async with running(FleetBench(*(model(f"m{number}") for number in range(models)))) as bench, asyncio.TaskGroup() as tasks:
        tick, turns = tasks.create_task(bench.reconciler.tick()), 0
        while not tick.done():
            turns += 1
            await asyncio.sleep(0)
    return turns


async def test_thousands_of_models_hold_no_request_up() -> None:
    assert await turns_of_a_tick(1000) >= await turns_of_a_tick(1) + 10


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


class TestLooking:
    async def test_all_are_looked_at_together_and_one_that_hangs_for_so_long_only(self) -> None:
        bench = FleetBench(model("a", min_replicas=1), servers=3)
        bench.loads["s0"].poll_index = hang  # type: ignore[method-assign]
        async with running(bench, reconciles=True):
            bench.tritons["s1"].states["a"] = READY
            await asyncio.sleep(0.1)
            assert await bench.use("a", 0.001) == "s1"
            bench.tritons["s1"].states.clear()
            await asyncio.sleep(12.0)
            assert "load a" in bench.said, "it is looked at again and again"

    async def test_nothing_is_placed_on_a_server_before_it_is_known_what_it_has(self) -> None:
        async with running(FleetBench(model("a", 60), model("b", 60))) as bench:
            bench.kill("s0")
            bench.tritons["s0"].live, bench.tritons["s0"].states = True, {"a": READY}
            bench.servers.members["s0"].up(FakeUpstream(control=bench.tritons["s0"]))
            with pytest.raises(Overloaded, match="no server that could take 'b' is up"):
                await bench.use("b", 1.0)
            await bench.reconciler.tick()
            await asyncio.sleep(5.0)
            assert await bench.use("b", 5.0) == "s0"
            assert bench.said == ["unload a", "load b"]

    async def test_what_a_look_brings_of_a_server_that_has_gone_down_meanwhile_is_not_believed(self) -> None:
        bench = FleetBench()
        bench.kill("s0")
        bench.state.observe("s0", [ModelVersion("a", "1", READY, "")])
        assert (bench.server().is_up, bench.server().replicas) == (False, {})


class TestLettingGo:
    """Replicas that wait for their turn to be unloaded."""

    @pytest.mark.parametrize("becomes", ["idle", "used", "held", "pinned", "wanted"])
    async def test_a_replica_goes_only_if_it_is_still_to_go_when_it_is_its_turn(self, becomes: str) -> None:
        async with running(FleetBench(servers=2)) as bench, asyncio.TaskGroup() as tasks:
            for triton in bench.tritons.values():
                triton.states["a"] = READY
            await bench.reconciler.tick()
            await asyncio.sleep(100.0)
            for name in ("s0", "s1"):
                tasks.create_task(turn(bench, name))
            await asyncio.sleep(0.1)
            await bench.reconciler.tick()
            (going,) = [name for name in ("s0", "s1") if bench.router.loads.is_being_unloaded("a", name)]
            replica, facts = bench.replica("a", going), bench.state.fleet.models["a"]
            claims = [bench.state.reserve("a", going)] if becomes == "used" else []
            replica.sequences += becomes == "held"
            if becomes == "pinned":
                bench.state.specs.pin("a", 2)
            elif becomes == "wanted":
                facts.rate_fast, facts.last_used_s = 1000.0, bench.now_s()
            await asyncio.sleep(20.0)
            assert bench.said.count("unload a") == (becomes == "idle")
            replica.sequences = 0
            for claim in claims:
                assert claim is not None
                claim.release(answered=True)

    async def test_of_an_overfull_server_no_more_goes_than_has_to(self) -> None:
        names = "abcd"
        async with running(FleetBench(*(model(name, 25) for name in names))) as bench, asyncio.TaskGroup() as tasks:
            bench.tritons["s0"].drain_s = 5.0
            bench.tritons["s0"].states |= dict.fromkeys(names, READY)
            await bench.reconciler.tick()
            await asyncio.sleep(100.0)
            bench.server().budget_bytes = 80
            bench.tritons["s0"].budget_bytes = 80
            tasks.create_task(turn(bench, "s0", for_s=2.0))
            for _ in range(6):
                await bench.reconciler.tick()
                leaving = [name for name in names if bench.router.loads.is_being_unloaded(name, "s0")]
                assert len(leaving) == 1
                await asyncio.sleep(0.5)
                facts = bench.state.fleet.models[leaving[0]]
                # So that other models are evicted first next time.
                facts.rate_fast, facts.rate_slow, facts.last_used_s = 9.0, 9.0, bench.now_s()
            await asyncio.sleep(10.0)
            assert len(bench.said) == 1
            assert len(bench.server().replicas) == 3

    async def test_one_that_fits_again_when_it_is_its_turn_stays(self) -> None:
        async with running(FleetBench(*(model(name, 25) for name in "abcd"))) as bench, asyncio.TaskGroup() as tasks:
            bench.tritons["s0"].states |= dict.fromkeys("abcd", READY)
            await bench.reconciler.tick()
            await asyncio.sleep(100.0)
            bench.server().budget_bytes = 80
            tasks.create_task(turn(bench, "s0", for_s=5.0))
            await asyncio.sleep(0.1)
            await bench.reconciler.tick()
            bench.server().budget_bytes = 100
            await asyncio.sleep(10.0)
            assert not bench.said


async def turn(bench: FleetBench, server: str, for_s: float = 10.0) -> None:
    """Hold the server's turn for `for_s` seconds."""
    async with bench.router.loads._turns.turn(server):
        await asyncio.sleep(for_s)


async def test_what_is_asked_for_while_the_gateway_stops_is_refused_and_not_a_defect() -> None:
    async with running(FleetBench()) as bench, asyncio.TaskGroup() as tasks:
        bench.tritons["s0"].load_s["a"] = 5.0
        owner = tasks.create_task(bench.router.loads.run())
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await bench.use("a", 0.5)
        owner.cancel()
        await asyncio.sleep(0)
        bench.router.loads.schedule_unload("a", "s0", kind=FleetEventKind.UNLOADED, reason="")
        with pytest.raises(UpstreamUnavailable, match="starts or stops"):
            await bench.use("b", 5.0)


async def test_a_server_beyond_its_budget_is_told_of_once_and_when_it_is_within_it_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with running(FleetBench(model("a"), model("b")), reconciles=True) as bench:
        for name in "ab":
            bench.tritons["s0"].states[name] = READY
        await asyncio.sleep(2.0)
        claims = [bench.state.reserve(name, "s0") for name in "ab"]
        bench.server().budget_bytes = 60
        await asyncio.sleep(10.0)
        for claim in claims:
            assert claim is not None
            claim.release(answered=True)
        await asyncio.sleep(10.0)
    told = [(record.levelname, record.getMessage()) for record in caplog.records if "budget" in record.message]
    assert told == [
        ("WARNING", "the models on server s0 hold 80 bytes, 20 more than its budget"),
        ("INFO", "the models on server s0 are within its budget again"),
    ]
    assert all(record.server == "s0" for record in caplog.records if "budget" in record.message)  # type: ignore[attr-defined]


async def test_of_a_budget_below_what_is_kept_all_else_goes() -> None:
    bench = FleetBench(model("kept", 30, min_replicas=1), model("a", 30), model("b", 30))
    async with running(bench, reconciles=True):
        await asyncio.sleep(5.0)
        for name in "ab":
            await bench.use(name)
        bench.server().budget_bytes = 20
        await asyncio.sleep(30.0)
        assert bench.tritons["s0"].states == {"kept": READY}


async def test_servers_that_do_not_tell_what_they_hold_keep_ticks_waiting_together() -> None:
    bench = FleetBench(servers=3)
    for triton in bench.tritons.values():
        triton.memory_bytes = hang  # type: ignore[method-assign,assignment]
        triton.states["a"] = READY
    async with running(bench, reconciles=True):
        await asyncio.sleep(7.0)
        assert len(bench.state.fleet.ready_replicas("a")) == 3
