"""Fate of requests at replicas whose stub has died: they are taken back, and wait for one that lives or is loaded anew;
over fake Tritons."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from control_plane.core.errors import DeadlineExceeded
from control_plane.fleet.domain.snapshot import ReplicaSnapshot
from control_plane.fleet.view.mirror import FleetMirror
from control_plane.triton.copy_silence import HUNG
from control_plane.triton.ports import Upstream
from tests.unit.fleet.fleet_bench import LOADING, READY, FleetBench, model, running
from tests.unit.fleet.routing.dispatch_bench import Request, idle, status
from tests.unit.fleet.routing.faults.losses_bench import DEAD
from tests.unit.fleet.routing.faults.resending_bench import OK, ready_everywhere, send

pytestmark = pytest.mark.virtual_time


class Mortal:
    """Servers whose replicas are dead once a test says so; each answers only after a while."""

    def __init__(self, bench: FleetBench) -> None:
        self.bench = bench
        self.deaths = Counter[str]()

    def name_of(self, server: Upstream) -> str:
        return next(name for name in self.bench.tritons if self.bench.servers.members[name].pick() is server)

    def kill(self, name: str, how: str = "was killed by SIGKILL") -> None:
        """End a server's stub of model `a`, and tell the router, as the watchdog of stubs does."""
        self.deaths[name] += 1
        self.bench.tritons[name].dead.add("a")
        self.bench.router.stub_died(name, "a", how)

    def request(self, *, takes_s: float = 0.5) -> Sent:
        return Sent(self, takes_s)


class Sent(Request):
    def __init__(self, servers: Mortal, takes_s: float) -> None:
        super().__init__(takes_s=takes_s)
        self.servers = servers

    async def send(self, server: Upstream, *, timeout_s: float) -> Any:
        self.sent.append((server, timeout_s))
        servers, name = self.servers, self.servers.name_of(server)
        deaths, is_dead = servers.deaths[name], "a" in servers.bench.tritons[name].dead
        if self.takes_s > timeout_s:
            await asyncio.sleep(timeout_s)
            raise DeadlineExceeded("Triton did not answer")
        await asyncio.sleep(self.takes_s)
        if is_dead or servers.deaths[name] != deaths:
            await asyncio.sleep(5.0)  # behind others, of which Triton says each second that the stub is dead
            return DEAD
        return OK


@pytest.mark.parametrize("is_repeatable", [True, False])
async def test_what_is_at_a_replica_whose_stub_dies_is_sent_to_another_at_once(is_repeatable: bool) -> None:
    async with running(FleetBench(servers=2)) as bench, asyncio.TaskGroup() as tasks:
        await ready_everywhere(bench)
        servers = Mortal(bench)
        requests = [servers.request() for _ in range(12)]
        asked = [tasks.create_task(send(bench, each, is_repeatable=is_repeatable)) for each in requests]
        await asyncio.sleep(0.1)
        there = [each for each in requests if servers.name_of(each.sent[0][0]) == "s0"]
        assert there
        servers.kill("s0")
        began_s = bench.now_s()
        answers = [status(each) for each in await asyncio.gather(*asked)]
        assert answers.count(200) == (12 if is_repeatable else 12 - len(there))
        if is_repeatable:
            assert servers.name_of(there[0].sent[1][0]) == "s1"
            assert bench.now_s() - began_s < 0.6 + 0.5 * len(there), "suspects go one by one"
        assert idle(bench)


@pytest.mark.parametrize("how", [HUNG, "was killed by SIGKILL"])
async def test_who_waits_behind_two_that_hang_is_innocent_unless_the_stubs_die_by_themselves(how: str) -> None:
    async with running(FleetBench(servers=2), reconciles=True) as bench:
        await ready_everywhere(bench)
        servers = Mortal(bench)
        endless = [servers.request(takes_s=60.0) for _ in bench.tritons]
        ends = await asyncio.gather(*(send(bench, each, timeout_s=1.0) for each in endless), return_exceptions=True)
        assert [type(each) for each in ends] == [DeadlineExceeded] * 2
        assert {servers.name_of(each.sent[0][0]) for each in endless} == {"s0", "s1"}
        request = servers.request(takes_s=3.0)
        asked = asyncio.get_running_loop().create_task(send(bench, request, timeout_s=20.0))
        for _ in bench.tritons:
            await asyncio.sleep(0.1)
            servers.kill(servers.name_of(request.sent[-1][0]), how)
        await asyncio.wait([asked])
        assert (asked.exception() is None) == (how == HUNG)
        assert bench.dispatch.deaths.found == (0 if how == HUNG else 1), "a poison could hide behind one that was given up"


async def test_where_all_are_dead_it_waits_for_the_first_that_is_loaded_anew() -> None:
    async with running(FleetBench(servers=3)) as bench, asyncio.TaskGroup() as tasks:
        await ready_everywhere(bench)
        servers = Mortal(bench)
        requests = [servers.request(takes_s=0.01) for _ in range(12)]
        for name in bench.tritons:
            servers.kill(name)
        asked = [tasks.create_task(send(bench, each)) for each in requests]
        began_s = bench.now_s()
        assert [status(each) for each in await asyncio.gather(*asked)] == [200] * 12
        assert bench.now_s() - began_s < 2.5
        assert idle(bench)


async def test_a_death_whose_cause_is_known_is_mended_at_once_and_one_without_waits() -> None:
    async with running(FleetBench(servers=1)) as bench:
        await ready_everywhere(bench)
        servers, replica = Mortal(bench), lambda: bench.server("s0").replicas["a"]

        async def is_mended_soon() -> bool:
            bench.tritons["s0"].dead.discard("a")
            await asyncio.sleep(3.0)
            return replica().state is READY

        servers.kill("s0")
        assert await is_mended_soon()
        servers.kill("s0")
        assert not await is_mended_soon(), "nobody knows why"
        assert replica().ready_s is not None
        bench.router.explain_death("s0", "a")
        assert replica().ready_s - bench.now_s() < 3.0, "who waits for it is told"
        assert await is_mended_soon()
        bench.router.explain_death("s0", "a")
        servers.kill("s0")
        assert await is_mended_soon()
        bench.router.explain_death("s0", "unknown")
        bench.router.explain_death("gone", "a")


async def tell_dead(bench: FleetBench, servers: Mortal, *, is_repeatable: bool) -> Request:
    """A request that a dead stub answers; of an attached Triton nothing else tells that it is dead."""
    request = Request([DEAD, OK])
    await send(bench, request, is_repeatable=is_repeatable)
    return request


@pytest.mark.parametrize("is_repeatable", [True, False])
async def test_one_answer_takes_a_replica_out_of_routing_and_one_probe_has_it_loaded_anew(is_repeatable: bool) -> None:
    async with running(FleetBench(servers=2)) as bench:
        await ready_everywhere(bench)
        servers = Mortal(bench)
        first = await tell_dead(bench, servers, is_repeatable=is_repeatable)
        doubted = servers.name_of(first.sent[0][0])
        bench.tritons[doubted].dead.add("a")
        for _ in range(20):
            request = servers.request(takes_s=0.01)
            assert status(await send(bench, request, is_repeatable=False)) == 200
            assert servers.name_of(request.sent[0][0]) != doubted
        assert not bench.said
        probe = Request([DEAD, OK])
        assert status(await send(bench, probe)) == 200
        assert [servers.name_of(server) == doubted for server, _ in probe.sent] == [True, False]
        await asyncio.sleep(0.0)
        assert bench.server(doubted).replicas["a"].is_dead
        await asyncio.sleep(2.0)
        assert bench.said == ["unload a", "load a"]


async def test_words_of_a_models_own_are_disproved_by_the_probe() -> None:
    async with running(FleetBench(servers=2)) as bench:
        await ready_everywhere(bench)
        servers = Mortal(bench)
        for _ in range(10):
            first = await tell_dead(bench, servers, is_repeatable=False)
            probe = servers.request(takes_s=0.01)
            assert status(await send(bench, probe)) == 200
            assert probe.sent[0][0] is first.sent[0][0]
            assert bench.state.doubts.avoided("a") == frozenset()
            await asyncio.sleep(31.0)
        assert not bench.said


async def test_there_is_one_probe_at_a_time_and_the_pause_between_them_doubles() -> None:
    async with running(FleetBench(servers=2)) as bench:
        await ready_everywhere(bench)
        now_s, doubts, probes = bench.now_s, bench.state.doubts, list[float]()
        claim = bench.state.reserve("a", "s0")
        assert claim is not None
        assert not doubts.doubt(claim, now_s())
        while now_s() < 30.0:
            if doubts.due_probe("a", now_s()) is not None:
                probe = bench.state.reserve("a", "s0")
                assert probe is not None
                doubts.begin_probe(probe)
                probes.append(now_s())
                await asyncio.sleep(0.5)
                assert doubts.due_probe("a", now_s()) is None
                assert doubts.doubt(probe, now_s())
                probe.release(answered=False)
            await asyncio.sleep(0.1)
        pauses = [round(later - earlier - 0.5) for earlier, later in pairwise(probes)]
        assert pauses == [2, 4, 8, 8]
        claim.release(answered=True)
        doubts.answered(claim, now_s())
        assert doubts.avoided("a") == frozenset()


async def test_a_worker_takes_back_what_its_parent_has_seen_die() -> None:
    """The parent's snapshot says that the replica is dead."""
    async with running(FleetBench(servers=2)) as bench:
        await ready_everywhere(bench)
        mirror = FleetMirror(bench.state, bench.servers)
        servers = Mortal(bench)
        replicas = {name: {"a": ReplicaSnapshot(number, READY, 40, 0.0, None)} for number, name in enumerate(bench.tritons)}
        for name, snapshot in replicas.items():
            mirror.apply_replicas(name, snapshot)
        request = servers.request(takes_s=3.0)
        asked = asyncio.get_running_loop().create_task(send(bench, request))
        await asyncio.sleep(0.1)
        name = servers.name_of(request.sent[0][0])
        dead = replace(replicas[name]["a"], state=LOADING, ready_s=bench.now_s() + 2.0, is_dead=True, has_hung=True)
        mirror.apply_replicas(name, {"a": dead})
        assert bench.server(name).replicas["a"].has_hung
        await asyncio.sleep(0.1)
        assert [servers.name_of(server) == name for server, _ in request.sent] == [True, False]
        assert status(await asked) == 200
        mirror.apply_replicas(name, replicas[name])
        assert not bench.server(name).replicas["a"].has_hung


async def test_who_asks_for_a_step_itself_whose_stub_has_hung_is_sent_to_another() -> None:
    """The step is loaded anew with its ensemble."""
    async with (
        running(FleetBench(model("a", 10), model("e", 20, steps=frozenset({"a"})), servers=2)) as bench,
        asyncio.TaskGroup() as tasks,
    ):
        for name, triton in bench.tritons.items():
            triton.states.update(a=READY, e=READY)
            await bench.loads[name].poll_index()
        servers = Mortal(bench)
        request = servers.request()
        asked = tasks.create_task(send(bench, request))
        await asyncio.sleep(0.1)
        name = servers.name_of(request.sent[0][0])
        servers.kill(name, HUNG)
        step = bench.replica("a", name)
        assert step.is_dead
        assert step.has_hung
        assert status(await asked) == 200
        assert [servers.name_of(server) == name for server, _ in request.sent] == [True, False]
        await asyncio.sleep(5.0)
        assert not bench.replica("a", name).is_dead
        assert bench.replica("e", name).state is READY


@pytest.mark.parametrize("number", [1, 2])
async def test_a_gateway_that_does_not_lead_blames_nobody_whom_a_stub_answers_that_was_dead_before(number: int) -> None:
    """Its view goes on listing the replica as READY until the leader has begun to load it anew."""
    async with running(FleetBench(servers=number)) as bench, asyncio.TaskGroup() as tasks:
        await ready_everywhere(bench)
        bench.request_repair = lambda server, model: True  # type: ignore[method-assign]
        servers = Mortal(bench)
        before = [servers.request() for _ in range(4)]
        asked = [tasks.create_task(send(bench, each)) for each in before]
        await asyncio.sleep(0.1)
        servers.kill("s0")
        await asyncio.sleep(0.1)
        after = [servers.request() for _ in range(4)]
        asked += [tasks.create_task(send(bench, each)) for each in after]
        await asyncio.sleep(10.0)
        for state in (LOADING, READY):  # as the leader has it loaded
            bench.tritons["s0"].states["a"] = state
            await bench.loads["s0"].poll_index()
        bench.tritons["s0"].dead.clear()
        statuses = Counter([status(await each) for each in asked])
        assert bench.dispatch.deaths.refused == bench.dispatch.deaths.found == 0
        if number == 2:
            assert statuses == {200: 8}
            assert all(servers.name_of(server) == "s1" for each in after for server, _ in each.sent), "it is avoided"
            assert all(servers.name_of(server) == "s1" for each in before for server, _ in each.sent[1:])


async def test_a_gateway_that_does_not_lead_knows_that_a_stub_has_hung() -> None:
    async with running(FleetBench()) as bench:
        await ready_everywhere(bench)
        bench.request_repair = lambda server, model: True  # type: ignore[method-assign]
        bench.router.stub_died("s0", "a", HUNG)
        assert bench.replica("a").is_dead
        assert bench.replica("a").has_hung


async def test_of_a_model_that_is_not_described_yet_ends_no_gateway() -> None:
    async with running(FleetBench()) as bench:
        bench.tritons["s0"].states["new"] = READY  # loaded by somebody else, from a folder that has just come
        await bench.loads["s0"].poll_index()
        bench.router.stub_died("s0", "new", "was killed by SIGKILL")
        await asyncio.sleep(1.0)
        assert bench.replica("new").state is READY
