from __future__ import annotations

import asyncio

import pytest

from control_plane.core.infer_call import InferCall
from control_plane.core.model import ModelVersion
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.membership.draining import Drainer, DrainLimits
from tests.unit.fleet.fleet_bench import READY, FleetBench, call, model, running

pytestmark = pytest.mark.virtual_time

LIMITS = DrainLimits(move_s=20.0, end_s=40.0, unload_s=10.0, report_grace_s=5.0)


async def drain(bench: FleetBench, name: str) -> float:
    """Drain a server, and return how long that took."""
    began_s = bench.now_s()
    leaving = Drainer(bench.state, bench.router.loads, is_leader=lambda: bench.is_leader, limits=LIMITS)
    await leaving.drain(name)
    return bench.now_s() - began_s


async def used(bench: FleetBench, name: str = "a") -> tuple[str, str]:
    """Return the server that has the model now, and the one that has not."""
    home = await bench.use(name)
    (other,) = bench.tritons.keys() - {home}
    assert name not in bench.server(other).replicas
    return home, other


def in_sequence(*, starts: bool = False, ends: bool = False) -> InferCall:
    return InferCall("a", "", "", (), sequence_id="7", starts_sequence=starts, ends_sequence=ends)


async def test_what_is_under_way_ends_before_its_model_goes_and_who_comes_meanwhile_goes_elsewhere() -> None:
    async with running(FleetBench(servers=2), reconciles=True) as bench, asyncio.TaskGroup() as tasks:
        home, other = await used(bench)
        long = tasks.create_task(bench.use("a", for_s=25.0))
        await asyncio.sleep(1.0)
        leaving = tasks.create_task(drain(bench, home))
        await asyncio.sleep(1.0)
        assert await bench.use("a") == other
        await asyncio.sleep(20.0)
        assert "unload a" not in bench.tritons[home].said
        assert await long == home
        assert await leaving < 26.0
        assert bench.tritons[home].states == {}
        assert bench.told(FleetEventKind.UNLOADED) == [("unloaded", "a")]


async def test_a_sequence_goes_on_where_it_is_until_it_ends() -> None:
    async with running(FleetBench(model("a", holds=True), servers=2), reconciles=True) as bench, asyncio.TaskGroup() as tasks:
        first = await bench.router.acquire(in_sequence(starts=True), deadline_s=1e3)
        first.release(answered=True)
        home = first.server.name
        leaving = tasks.create_task(drain(bench, home))
        for _ in range(3):
            await asyncio.sleep(8.0)
            claim = await bench.router.acquire(in_sequence(), deadline_s=1e3)
            assert claim.replica is first.replica
            claim.release(answered=True)
        assert not leaving.done()
        last = await bench.router.acquire(in_sequence(ends=True), deadline_s=1e3)
        last.release(answered=True)
        bench.router.answered(in_sequence(ends=True), last)
        assert await leaving < 27.0
        assert bench.tritons[home].said == ["load a", "unload a"]


async def test_nobody_waits_for_ever_for_what_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    async with running(FleetBench(servers=2), reconciles=True) as bench:
        home, _ = await used(bench)
        claim = await bench.claim("a")
        bench.tritons[home].drain_s = 1e4  # as Triton waits for it
        took_s = await drain(bench, home)
        assert took_s == pytest.approx(LIMITS.report_grace_s + LIMITS.end_s + LIMITS.unload_s, abs=1.0)
        claim.release(answered=True)
    assert "leaves with requests or sequences under way: a" in caplog.text
    assert "has left the fleet with models loaded: a" in caplog.text


async def test_what_must_have_replicas_is_loaded_elsewhere_before_it_goes() -> None:
    bench = FleetBench(model("a", min_replicas=1), servers=2)
    async with running(bench, reconciles=True), asyncio.TaskGroup() as tasks:
        home, other = await used(bench)
        bench.tritons[other].load_s["a"] = 12.0
        leaving = tasks.create_task(drain(bench, home))
        while "unload a" not in bench.tritons[home].said:
            assert not leaving.done()
            had = bench.tritons[other].states.get("a")
            await asyncio.sleep(0.1)
        assert had is READY
        assert 12.0 < await leaving < 20.0


async def test_what_has_lately_been_used_is_loaded_elsewhere_where_memory_is_free() -> None:
    async with running(FleetBench(servers=2), reconciles=True) as bench:
        home, other = await used(bench)
        await asyncio.sleep(600.0)
        assert await drain(bench, home) < 8.0
        assert bench.tritons[other].states == {"a": READY}
        assert bench.tritons[home].states == {}


async def test_what_has_not_been_used_for_long_is_loaded_elsewhere_when_it_is_asked_for() -> None:
    async with running(FleetBench(servers=2), reconciles=True) as bench:
        home, other = await used(bench)
        await asyncio.sleep(1000.0)
        await drain(bench, home)
        assert bench.tritons[other].said == []
        assert await bench.use("a") == other


async def test_what_has_lately_been_used_takes_no_other_models_memory() -> None:
    async with running(FleetBench(*(model(name, 60) for name in "ab"), servers=2), reconciles=True) as bench:
        home, other = await used(bench)
        assert await bench.use("b") == other
        await asyncio.sleep(10.0)
        await drain(bench, home)
        assert bench.tritons[other].states == {"b": READY}


async def test_what_another_server_has_too_is_not_loaded_on_a_third() -> None:
    async with running(FleetBench(servers=3), reconciles=True) as bench:
        home = await bench.use("a")
        bench.router.loads.load_replica(bench.state.fleet.models["a"])
        await asyncio.sleep(10.0)
        await drain(bench, home)
        assert bench.said.count("load a") == 2


async def test_what_is_used_most_is_moved_first_and_what_is_asked_for_comes_before_the_rest() -> None:
    bench = FleetBench(*(model(name) for name in "abcd"), servers=2, budget_bytes=200)
    bench.servers.members["s1"].down("later")
    async with running(bench, reconciles=True), asyncio.TaskGroup() as tasks:
        for name in "abcbbc":
            await bench.use(name)
        bench.bring_up("s1")
        await asyncio.sleep(10.0)
        leaving = tasks.create_task(drain(bench, "s0"))
        await asyncio.sleep(0.5)
        assert await bench.use("d") == "s1"
        assert await leaving < 10.0
        assert bench.tritons["s1"].said == ["load b", "load d", "load c", "load a"]


@pytest.mark.parametrize("size", [pytest.param(40, id="for now"), pytest.param(100, id="for good")])
async def test_where_there_is_no_room_for_it_it_goes_all_the_same(size: int) -> None:
    bench = FleetBench(model("a", 40, min_replicas=1), model("b", 80, min_replicas=1), servers=2)
    if size == 100:
        bench.server("s1").budget_bytes = 30
    async with running(bench, reconciles=True):
        await bench.use("a")
        if size == 40:
            await bench.use("b")
        await asyncio.sleep(1.0)
        took_s = await drain(bench, "s0")
        waited_s = LIMITS.move_s if size == 40 else 0.0
        assert took_s == pytest.approx(waited_s + LIMITS.report_grace_s, abs=2.0)
        assert bench.tritons["s0"].states == {}


async def test_a_load_under_way_there_ends_first_and_one_that_waits_for_its_turn_goes_elsewhere() -> None:
    bench = FleetBench(servers=2)
    bench.tritons["s0"].load_s["a"] = 15.0
    async with running(bench, reconciles=True), asyncio.TaskGroup() as tasks:
        bench.servers.members["s1"].down("later")
        using = [tasks.create_task(bench.use(name)) for name in "ab"]
        await asyncio.sleep(1.0)
        bench.bring_up("s1")
        leaving = tasks.create_task(drain(bench, "s0"))
        assert await using[1] == "s1"
        assert await leaving > 13.0
        assert bench.tritons["s0"].said == ["load a", "unload a"]
        assert await using[0] == "s1"


async def test_who_is_not_the_leader_waits_for_its_own_requests_and_unloads_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with running(FleetBench(servers=2), reconciles=True) as bench, asyncio.TaskGroup() as tasks:
        home, _ = await used(bench)
        bench.is_leader = False
        tasks.create_task(bench.use("a", for_s=20.0))
        await asyncio.sleep(1.0)
        assert await drain(bench, home) == pytest.approx(19.0, abs=1.5)
        assert bench.tritons[home].states == {"a": READY}
    assert "unloaded" not in caplog.text


async def test_what_others_have_loaded_there_meanwhile_stays() -> None:
    async with running(FleetBench(servers=2), reconciles=True) as bench, asyncio.TaskGroup() as tasks:
        home, _ = await used(bench)
        leaving = tasks.create_task(drain(bench, home))
        await asyncio.sleep(1.0)
        bench.tritons[home].states["b"] = READY
        await leaving
        assert bench.tritons[home].states == {"b": READY}


async def test_an_ensemble_takes_its_steps_along() -> None:
    bench = FleetBench(model("e", steps=frozenset({"x"})), model("x"), servers=2)
    bench.tritons["s0"].states |= {"x": READY, "e": READY}
    async with running(bench, reconciles=True):
        await asyncio.sleep(1.0)
        await drain(bench, "s0")
        assert bench.tritons["s0"].states == {}
        assert bench.tritons["s0"].unloads == ["e"]


async def test_from_one_that_is_down_there_is_nothing_to_see_off() -> None:
    async with running(FleetBench(model("a", min_replicas=1), servers=2), reconciles=True) as bench:
        home, _ = await used(bench)
        bench.kill(home)
        assert await drain(bench, home) < 1.0


async def test_one_that_dies_meanwhile_is_waited_for_no_longer() -> None:
    async with running(FleetBench(servers=2), reconciles=True) as bench, asyncio.TaskGroup() as tasks:
        home, _ = await used(bench)
        claim = await bench.claim("a")
        leaving = tasks.create_task(drain(bench, home))
        await asyncio.sleep(10.0)
        bench.kill(home)
        assert await leaving < 12.0
        claim.release(answered=False)


async def test_nothing_is_loaded_there_any_more_whatever_is_asked_for() -> None:
    async with running(FleetBench(*(model(name) for name in "abc"), servers=2), reconciles=True) as bench, asyncio.TaskGroup() as tasks:
        leaving = tasks.create_task(drain(bench, "s0"))
        await asyncio.sleep(0.0)
        for name in "abcabc":
            claim = await bench.router.acquire(call(name), deadline_s=1e3)
            claim.release(answered=True)
            await asyncio.sleep(3.0)
            assert claim.server.name == "s1"
        await leaving
        assert bench.tritons["s0"].said == []


async def test_a_look_that_is_answered_after_its_server_has_left_hurts_nobody() -> None:
    async with running(FleetBench(servers=2)) as bench, asyncio.TaskGroup() as tasks:
        control, may_answer = bench.tritons["s0"], asyncio.Event()
        index = control.index

        async def late() -> list[ModelVersion]:
            await may_answer.wait()
            return await index()

        control.index = late  # type: ignore[method-assign]
        looking = tasks.create_task(bench.reconciler.poll_index())
        await asyncio.sleep(1.0)
        bench.servers.members["s0"].down("it leaves")
        del bench.loads["s0"]
        bench.servers.remove("s0")
        may_answer.set()
        await looking
        assert list(bench.state.fleet.servers) == ["s1"]
        assert await bench.use("a") == "s1"


async def test_while_this_process_stops_nothing_is_loaded_elsewhere() -> None:
    bench = FleetBench(servers=2)
    async with running(bench):
        home, other = await used(bench)
    bench.is_leader = True
    assert await drain(bench, home) < LIMITS.move_s
    assert bench.tritons[other].said == []
