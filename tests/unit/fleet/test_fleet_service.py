"""Joining and leaving servers in a fleet that is wired as in production, over fake Tritons."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

from control_plane.app.upstreams.triton_instances import TritonInstance
from control_plane.core.endpoints import ListedServer, TritonEndpoints
from control_plane.core.errors import Overloaded
from control_plane.fleet.adapters.local_lease import LocalLease
from control_plane.fleet.adapters.own_instance import OwnInstance
from control_plane.fleet.domain.fleet import ModelFacts
from control_plane.fleet.domain.leadership.lease import Lease
from control_plane.fleet.domain.leadership.report import Wanted
from control_plane.fleet.fleet_service import FleetOptions, FleetService
from control_plane.fleet.leadership.election import LeaderElection
from control_plane.fleet.membership.members import FleetMembers
from control_plane.models.model_service import ModelService
from control_plane.triton.attachment import AttachedHealthCheck
from control_plane.triton.servers import Servers
from tests.fakes import FakeUpstream
from tests.fakes.stores.fleet_memory import FakeFleetMemory
from tests.fakes.stores.leader_channel import FakeLeaderChannel
from tests.fakes.stores.lease import FakeLeaseStore, FakeRecord
from tests.unit.fleet.fleet_bench import READY, FakeDescriptions, TimedControl, call, model
from tests.unit.fleet.membership.fake_server_list import FakeServerList

pytestmark = pytest.mark.virtual_time

SOON_S = 5.0


def listed(name: str, **said: object) -> ListedServer:
    port = 10 * ord(name[-1])
    return ListedServer(name, TritonEndpoints("h", port, port + 1, None), **said)  # type: ignore[arg-type]


@dataclass
class Shared:
    """What gateways before the same Tritons have in common."""

    record: FakeRecord = field(default_factory=FakeRecord)
    line: FakeLeaderChannel = field(default_factory=FakeLeaderChannel)
    memory: FakeFleetMemory = field(default_factory=FakeFleetMemory)
    tritons: dict[str, TimedControl] = field(default_factory=dict)


class Bench:
    """A fleet with models of 40 bytes and servers of 100, unless they are listed otherwise."""

    def __init__(self, *names: str, models: str = "abcd", pinned: str = "", shared: Shared | None = None) -> None:
        self.now_s = asyncio.get_running_loop().time
        described = {name: model(name, min_replicas=int(name in pinned)) for name in models}
        self.shared = shared
        self.memory_measured: list[str] = []
        self.tritons: dict[str, TimedControl] = {} if shared is None else shared.tritons
        self.upstreams: dict[str, FakeUpstream] = {}
        self.servers = Servers(None, ())
        self.fleet = FleetService(
            self.servers,
            FakeDescriptions(described),
            LeaderElection(LocalLease() if shared is None else FakeLeaseStore(shared.record), holder=uuid4().hex, now_s=self.now_s),
            memory=FakeFleetMemory() if shared is None else shared.memory,
            channel=None if shared is None else shared.line,
            options=FleetOptions(budget_bytes=100, load_timeout_s=300.0, wait_s=30.0),
            now_s=self.now_s,
        )
        self.list = FakeServerList([listed(name) for name in names])
        self.members = FleetMembers(self.list, self.servers, self.fleet, self.join, first=self.list.read(), start_timeout_s=60.0)

    def join(self, entry: ListedServer) -> TritonInstance:
        control = TimedControl(sizes=dict.fromkeys("abcd", 40), budget_bytes=entry.memory_budget or 100)
        if self.shared is not None:
            control = self.tritons.get(entry.name, control)
        self.tritons[entry.name] = control
        upstream = self.upstreams[entry.name] = FakeUpstream(entry.endpoints, control=control)
        member = self.servers.add(entry.name, is_needed=False)
        models = ModelService(servers=member, repository=None, load=[], load_timeout_s=300.0, restores=False)
        attachment = AttachedHealthCheck(upstream=upstream, servers=member, restore=models.restore, start_timeout_s=None)
        self.fleet.join(entry.name, OwnInstance(models, lambda: self.memory_measured.append(entry.name)), listed=entry)
        return TritonInstance(entry.name, models, None, attachment)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self.fleet.run()), tasks.create_task(self.members.run())]
            await self.servers.wait_until_up()
            await self.fleet.open([])
            yield
            assert not [task for task in running if task.done()]
            assert not [each for control in self.tritons.values() for each in control.violations]
            for task in running:
                task.cancel()

    async def use(self, name: str, *, for_s: float = 0.0) -> str:
        claim = await self.fleet.router.acquire(call(name), deadline_s=self.now_s() + 60.0)
        try:
            await asyncio.sleep(for_s)
        finally:
            claim.release(answered=True)
        return claim.server.name

    def facts(self, name: str) -> ModelFacts:
        return self.fleet.state.fleet.models[name]

    async def keep_using(self, names: str, served_by: set[str]) -> None:
        """Send requests for each of these models ten times a second, for ever; none may fail."""
        while True:
            for name in names:
                served_by.add(await self.use(name, for_s=0.01))
            await asyncio.sleep(0.1)


async def test_a_leader_whose_lease_is_elsewhere_loads_while_the_shared_store_is_away() -> None:
    shared = Shared(FakeRecord(Lease(1, "earlier", 6.0, is_released=True)))
    bench = Bench("s1", shared=shared)
    async with bench.running():
        await bench.use("a")
        shared.line.is_away = shared.memory.is_away = True
        await asyncio.sleep(60.0)
        assert await bench.use("b") == "s1"
        shared.line.is_away = shared.memory.is_away = False


async def test_one_that_joins_serves_and_one_that_leaves_does_so_while_all_are_answered() -> None:
    bench = Bench("s1")
    served_by = set[str]()
    async with bench.running(), asyncio.TaskGroup() as tasks:
        callers = [tasks.create_task(bench.keep_using(name, served_by)) for name in "ab"]
        await asyncio.sleep(SOON_S)
        assert served_by == {"s1"}
        bench.list.write(listed("s1"), listed("s2"))
        await asyncio.sleep(SOON_S)
        assert await bench.use("c") == "s2"
        bench.list.write(listed("s2"))
        await asyncio.sleep(30.0)
        assert list(bench.servers.members) == list(bench.fleet.state.fleet.servers) == ["s2"]
        assert bench.tritons["s1"].states == {}
        assert bench.upstreams["s1"].closed
        served_by.clear()
        bench.memory_measured.clear()
        await asyncio.sleep(20.0)
        assert served_by == {"s2"} == set(bench.memory_measured)
        assert not [caller for caller in callers if caller.done()]
        for caller in callers:
            caller.cancel()


async def test_a_fleet_of_no_servers_holds_requests_until_one_joins_and_refuses_those_that_would_wait_in_vain() -> None:
    bench = Bench("s1", pinned="a")
    async with bench.running():
        assert await bench.use("a") == "s1"
        bench.list.write()
        await asyncio.sleep(60.0)
        assert not bench.servers.members
        async with asyncio.TaskGroup() as tasks:
            held = [tasks.create_task(bench.use(name)) for name in "aab"]
            await asyncio.sleep(20.0)
            assert not any(each.done() for each in held)
            bench.list.write(listed("s2"))
        assert {each.result() for each in held} == {"s2"}
        bench.list.write()
        await asyncio.sleep(60.0)
        began_s = bench.now_s()
        with pytest.raises(Overloaded) as refused:
            await bench.use("a")
        assert bench.now_s() - began_s <= 31.0
        assert refused.value.retry_after_s


@pytest.mark.parametrize("the_leader_is_ahead", [True, False])
async def test_gateways_of_one_fleet_may_read_its_list_at_different_times(the_leader_is_ahead: bool) -> None:
    shared = Shared()
    benches = [Bench("s1", "s2", shared=shared) for _ in range(2)]
    served_by = set[str]()
    async with benches[0].running(), benches[1].running(), asyncio.TaskGroup() as tasks:
        callers = [tasks.create_task(bench.keep_using("ab", served_by)) for bench in benches]
        await asyncio.sleep(20.0)
        ahead, behind = sorted(benches, key=lambda bench: bench.fleet.is_leader is not the_leader_is_ahead)
        assert [ahead.fleet.is_leader, behind.fleet.is_leader] == [the_leader_is_ahead, not the_leader_is_ahead]
        (gone,) = [name for name, control in shared.tritons.items() if "a" in control.states]
        (left,) = shared.tritons.keys() - {gone}
        ahead.list.write(listed(left))
        await asyncio.sleep(90.0)
        assert list(ahead.servers.members) == [left]
        assert sorted(behind.servers.members) == ["s1", "s2"]
        behind.list.write(listed(left))
        await asyncio.sleep(90.0)
        assert list(behind.servers.members) == [left]
        assert shared.tritons[gone].states == {}
        assert not [caller for caller in callers if caller.done()]
        for caller in callers:
            caller.cancel()


async def test_what_is_under_way_when_a_server_leaves_is_answered_there() -> None:
    bench = Bench("s1", "s2")
    async with bench.running(), asyncio.TaskGroup() as tasks:
        home = await bench.use("a")
        under_way = tasks.create_task(bench.use("a", for_s=20.0))
        await asyncio.sleep(1.0)
        bench.list.write(*(listed(name) for name in bench.tritons.keys() - {home}))
        await asyncio.sleep(15.0)
        assert not bench.upstreams[home].closed
        assert await under_way == home
        await asyncio.sleep(SOON_S)
        assert bench.upstreams[home].closed


async def test_what_must_have_a_replica_has_one_all_the_time() -> None:
    bench = Bench("s1", "s2", pinned="a")
    async with bench.running():
        await asyncio.sleep(SOON_S)
        (home,) = [name for name, control in bench.tritons.items() if "a" in control.states]
        bench.list.write(*(listed(name) for name in bench.tritons.keys() - {home}))
        while home in bench.servers.members:
            assert any(control.states.get("a") is READY for control in bench.tritons.values())
            await asyncio.sleep(0.1)
        assert len(bench.fleet.state.fleet.ready_replicas("a")) == 1


async def test_what_only_one_that_has_left_could_load_is_known_no_longer() -> None:
    bench = Bench("s1", "s2")
    bench.tritons["s1"].states["foreign"] = READY
    async with bench.running():
        assert "foreign" in bench.fleet.state.specs.described
        bench.tritons["s1"].live = False
        bench.list.write(listed("s2"))
        await asyncio.sleep(20.0)
        assert "foreign" not in bench.fleet.state.specs.described


async def test_one_that_leaves_in_the_middle_of_a_load_that_hangs_is_forgotten_all_the_same() -> None:
    bench = Bench("s1")
    async with bench.running(), asyncio.TaskGroup() as tasks:
        bench.tritons["s1"].load_s["a"] = 1e5
        using = tasks.create_task(bench.use("a"))
        await asyncio.sleep(5.0)
        assert bench.tritons["s1"].said == ["load a"]
        bench.list.write(listed("s2"))
        await asyncio.sleep(SOON_S)
        bench.tritons["s2"].load_s["a"] = 1.0
        with contextlib.suppress(Overloaded):
            await using
        await asyncio.sleep(300.0)
        assert list(bench.servers.members) == ["s2"]
        assert bench.upstreams["s1"].closed
        assert await bench.use("a") == "s2"


async def test_a_budget_is_changed_in_place() -> None:
    bench = Bench("s1")
    async with bench.running():
        await bench.use("a")
        bench.list.write(listed("s1", memory_budget=30, pool="small", labels={"zone": "x"}))
        await asyncio.sleep(SOON_S)
        with pytest.raises(Overloaded, match="needs 40 bytes, more than a server has"):
            await bench.use("b")
        assert bench.fleet.state.fleet.pools.keys() == {"small"}
        bench.list.write(listed("s1"))
        await asyncio.sleep(SOON_S)
        assert await bench.use("b") == "s1"
        assert bench.fleet.state.fleet.pools.keys() == {""}
        assert bench.tritons["s1"].loads.count("a") == 1


async def test_who_stops_while_the_store_is_away_stops_all_the_same() -> None:
    class Line(FakeLeaderChannel):
        async def close(self) -> None:
            self._reach()

    shared = Shared(line=Line())
    bench = Bench("s1", shared=shared)
    async with bench.running():
        await bench.use("a")
        shared.line.is_away = True


async def test_another_server_of_the_same_name_begins_with_nothing() -> None:
    bench = Bench("s1", "s2", models="a")
    async with bench.running():
        home = await bench.use("a")
        before = bench.tritons[home]
        bench.list.write(
            ListedServer(home, TritonEndpoints("elsewhere", 1, 2, None)), *(listed(name) for name in bench.tritons.keys() - {home})
        )
        await asyncio.sleep(20.0)
        assert bench.tritons[home] is not before
        assert before.states == {}
        assert bench.fleet.state.fleet.servers[home].replicas == {}
        assert bench.servers.members[home].pick() is bench.upstreams[home]
        assert home in bench.servers.live


async def test_one_that_is_down_when_it_joins_serves_as_soon_as_it_is_up() -> None:
    bench = Bench("s1")
    async with bench.running():
        bench.list.write(listed("s1"), listed("s2"))
        await asyncio.sleep(SOON_S)
        bench.tritons["s2"].die()
        await asyncio.sleep(600.0)
        assert list(bench.servers.live) == ["s1"]
        bench.tritons["s2"].live = True
        await asyncio.sleep(SOON_S)
        assert list(bench.servers.live) == ["s1", "s2"]
        bench.tritons["s1"].die()
        await asyncio.sleep(SOON_S)
        assert await bench.use("d") == "s2"


async def test_who_starts_with_more_models_than_fit_does_not_wait_for_room_but_loads_them_when_there_is_some() -> None:
    bench = Bench("s1")
    async with bench.running():
        began_s = bench.now_s()
        failures = await bench.fleet.open(list("abcd"))
        assert [failure.name for failure in failures] == ["c", "d"]
        assert bench.now_s() - began_s < 10.0
        bench.list.write(listed("s1"), listed("s2"))
        await asyncio.sleep(30.0)
        assert bench.fleet.router.ready() == set("abcd")


async def test_who_starts_beside_models_in_use_does_not_wait_for_their_requests() -> None:
    bench = Bench("s1")
    async with bench.running(), asyncio.TaskGroup() as tasks:
        for name in "cd":
            tasks.create_task(bench.use(name, for_s=100.0))
        await asyncio.sleep(10.0)
        began_s = bench.now_s()
        assert [failure.name for failure in await bench.fleet.open(["a"])] == ["a"]
        assert bench.now_s() - began_s < 5.0
        await asyncio.sleep(100.0)
        assert "a" in bench.fleet.router.ready()


@pytest.mark.parametrize("pool", ["x", "y", "z"])
async def test_what_somebody_does_not_see_is_loaded_where_he_looks(pool: str) -> None:
    bench = Bench(models="a")
    bench.list.write(listed("s1", pool="x"), *(listed(f"s{number}", pool="y") for number in range(2, 6)), listed("s9", pool="z"))
    async with bench.running():
        await asyncio.sleep(SOON_S)
        await bench.fleet.router.ensure_loaded("a", deadline_s=bench.now_s() + 10.0)
        for _ in range(10):
            bench.fleet._want(Wanted("a", ready=0, pool=pool))
            await asyncio.sleep(0.5)
        holders = bench.fleet.state.fleet.holders["a"].values()
        assert pool in {server.pool for server in holders}


async def test_nothing_is_kept_of_one_that_has_left() -> None:
    bench = Bench("s1", "s2", models="a")
    async with bench.running():
        claim = await bench.fleet.router.acquire(call("a"), deadline_s=bench.now_s() + 60.0)
        claim.release(answered=True)
        bench.fleet.router.answered(call("a"), claim)
        home = claim.server.name
        bench.list.write(*(listed(name) for name in {"s1", "s2"} - {home}))
        await asyncio.sleep(60.0)
        assert home not in bench.fleet.state.ejection._answered_s
        assert home not in bench.fleet.router.loads._turns._locks
