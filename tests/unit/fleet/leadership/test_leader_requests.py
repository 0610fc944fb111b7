from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import Overloaded
from control_plane.fleet.domain.leadership.report import Wanted
from tests.fakes.stores.leader_channel import FakeLeaderChannel
from tests.unit.fleet.fleet_bench import READY, model
from tests.unit.fleet.leadership.leader_requests_bench import Gateway, serving

pytestmark = pytest.mark.virtual_time


async def test_who_is_not_the_leader_has_it_load_and_sees_it_at_once() -> None:
    line = FakeLeaderChannel()
    leader, other = Gateway(line, owns=True), Gateway(line)
    async with serving(leader, other):
        leader.tritons["s0"].load_s["a"] = 1.23
        began_s = leader.now_s()
        await other.use("a")
        assert leader.said == ["load a"]
        assert leader.now_s() - began_s < 1.23 + 0.1
        assert leader.told() == [("loaded", "a")]
        assert not leader.asking.request_replica("b"), "it loads itself"


async def test_what_all_processes_ask_for_at_once_is_one_load() -> None:
    line = FakeLeaderChannel()
    gateways = [Gateway(line, servers=2, process=str(number), owns=number == 0) for number in range(4)]
    async with serving(*gateways):
        await asyncio.gather(*(gateway.use("a") for gateway in gateways for _ in range(5)))
        assert gateways[0].said == ["load a"]
        await asyncio.sleep(5.0)
        assert gateways[0].said == ["load a"]


async def test_what_only_another_process_uses_is_not_evicted() -> None:
    line = FakeLeaderChannel()
    leader, other = Gateway(line, owns=True), Gateway(line)
    async with serving(leader, other):
        await leader.use("b")
        held = await other.claim("a")
        await asyncio.sleep(30.0)
        await leader.use("b")
        await leader.use("c")
        assert leader.server().replicas.keys() == {"a", "c"}, "by last use it would have been the other way round"
        held.release(answered=True)
        await asyncio.sleep(30.0)
        assert leader.replica("a").in_flight == 0
        await leader.use("c")
        await leader.use("d")
        assert leader.server().replicas.keys() == {"c", "d"}


async def test_what_was_over_before_its_leader_looked_counts_in_what_it_is_worth() -> None:
    line = FakeLeaderChannel()
    leader, other = Gateway(line, owns=True), Gateway(line)
    async with serving(leader, other):
        for _ in range(100):
            await other.use("a", for_s=0.001)
        await asyncio.sleep(1.0)
        told, own = leader.state.fleet.models["a"], other.state.fleet.models["a"]
        assert told.rate_fast == pytest.approx(own.rate_fast, rel=0.1)
        await asyncio.sleep(60.0)
        assert sum(report.uses.get("a", 0) for report in line.all_told) == 100, "and never twice"


async def test_a_process_that_has_ended_holds_nothing_for_long() -> None:
    line = FakeLeaderChannel()
    leader, other = Gateway(line, owns=True), Gateway(line)
    async with serving(leader, other):
        await other.claim("a")
        await asyncio.sleep(1.0)
        assert leader.replica("a").in_flight == 1
        other.asking = None  # type: ignore[assignment]
        other.own.make = lambda: None  # type: ignore[method-assign]
        await asyncio.sleep(5.0)
        assert leader.replica("a").in_flight == 0


async def test_who_takes_over_is_told_of_all_and_who_does_no_longer_counts_its_own_only() -> None:
    line = FakeLeaderChannel()
    one, other = Gateway(line, process="one", owns=True), Gateway(line, process="other")
    async with serving(one, other):
        held = [await one.claim("a"), await other.claim("a"), await other.claim("a")]
        await asyncio.sleep(1.0)
        assert one.replica("a").in_flight == 3
        assert other.replica("a").in_flight == 2
        one.is_leader, other.is_leader = False, True
        await asyncio.sleep(3.0)
        assert one.replica("a").in_flight == 1
        assert other.replica("a").in_flight == 3
        for each in held:
            each.release(answered=True)
        await asyncio.sleep(1.0)
        assert one.replica("a").in_flight == other.replica("a").in_flight == 0
        assert one.server().work_s == other.server().work_s == 0.0


async def test_an_ask_that_has_come_true_makes_no_second_replica() -> None:
    line = FakeLeaderChannel()
    leader, other = Gateway(line, servers=2, owns=True), Gateway(line, servers=2)
    async with serving(leader, other):
        at = await leader.use("a")
        leader.router.request_replica(Wanted("a", 1))
        await asyncio.sleep(3.0)
        assert leader.said == ["load a"], "it has nothing to do"
        held = [leader.state.reserve("a", at) for _ in range(1000)]
        leader.router.request_replica(Wanted("a", 0))
        await asyncio.sleep(3.0)
        assert leader.said == ["load a"], "it was asked for before it was there"
        leader.router.request_replica(Wanted("a", 1))
        await asyncio.sleep(3.0)
        assert leader.said == ["load a", "load a"]
        for each in held:
            assert each is not None
            each.release(answered=False)


async def test_another_process_whose_replica_is_too_busy_gets_another() -> None:
    line = FakeLeaderChannel()
    leader, other = Gateway(line, servers=2, owns=True), Gateway(line, servers=2)
    async with serving(leader, other):
        for gateway in (leader, other):
            gateway.state.fleet.models["a"].service_s = 0.2
        await other.use("a", for_s=0.2)
        await asyncio.gather(*(other.use("a", for_s=5.0) for _ in range(60)))
        assert leader.said == ["load a", "load a"]


async def test_what_an_administrator_has_unloaded_is_loaded_for_no_other_process() -> None:
    line = FakeLeaderChannel()
    leader, other = Gateway(line, owns=True), Gateway(line)
    async with serving(leader, other):
        await leader.models.unload("a")
        with pytest.raises(Overloaded):
            await other.use("a", timeout_s=5.0)
        assert leader.said == []
        assert {wanted.model for report in line.all_told for wanted in report.wanted} == {"a"}, "it was asked for"


async def test_it_asks_again_while_somebody_waits_and_not_for_every_request() -> None:
    line = FakeLeaderChannel()
    other = Gateway(line)
    async with serving(other):
        waiting = [asyncio.get_running_loop().create_task(other.claim("a", 10.0)) for _ in range(100)]
        await asyncio.sleep(5.0)
        asks = [report for report in line.told if report.wanted == (Wanted("a", 0),)]
        assert 5 <= len(asks) <= 25
        assert sum(report.uses.get("a", 0) for report in line.told) == 100
        await asyncio.wait(waiting)
        for each in waiting:
            assert isinstance(each.exception(), Overloaded)
        await asyncio.sleep(0.1)
        line.told.clear()
        await asyncio.sleep(5.0)
        assert line.told == [], "nothing happens"


async def test_an_leader_without_room_is_asked_until_it_has() -> None:
    line = FakeLeaderChannel()
    models = [model(name, 100) for name in "ab"]
    leader, other = Gateway(line, *models, owns=True), Gateway(line, *models)
    async with serving(leader, other):
        held = await leader.claim("a")
        using = asyncio.get_running_loop().create_task(other.use("b"))
        await asyncio.sleep(10.0)
        assert leader.said == ["load a"]
        held.release(answered=True)
        released_s = leader.now_s()
        await using
        assert leader.now_s() - released_s < 3.0
        assert leader.said == ["load a", "unload a", "load b"]


async def test_the_leader_is_asked_also_for_what_this_process_sees_no_room_for() -> None:
    line = FakeLeaderChannel()
    models = [model(name, 100) for name in "ab"]
    leader, other = Gateway(line, *models, owns=True), Gateway(line, *models)
    async with serving(leader, other):
        held = await other.claim("a")
        using = asyncio.get_running_loop().create_task(other.use("b"))
        await asyncio.sleep(5.0)
        assert Wanted("b", 0) in [wanted for report in line.all_told for wanted in report.wanted]
        assert leader.state.fleet.models["b"].refused_since_s > 0, "so its patience ends once"
        held.release(answered=True)
        await using


async def test_a_store_that_was_away_is_told_when_it_is_back() -> None:
    line = FakeLeaderChannel(is_away=True)
    leader, other = Gateway(line, owns=True), Gateway(line)
    async with serving(leader, other):
        using = asyncio.get_running_loop().create_task(other.use("a"))
        await asyncio.sleep(3.0)
        assert not using.done()
        line.is_away = False
        await using
        assert leader.said == ["load a"]


async def test_while_nothing_is_asked_for_the_servers_are_not_looked_at_more_often() -> None:
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1

    line = FakeLeaderChannel()
    other = Gateway(line)
    async with serving(other):
        looking = asyncio.get_running_loop().create_task(other.asking.poll_while_waiting(look))
        other.tritons["s0"].states["a"] = READY
        await asyncio.sleep(5.0)
        assert looks == 0
        assert other.asking.request_replica("b")
        await asyncio.sleep(60.0)
        assert 10 <= looks <= 30
        looking.cancel()
        await asyncio.wait([looking])
