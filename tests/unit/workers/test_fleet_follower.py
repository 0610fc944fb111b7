from __future__ import annotations

import asyncio

import pytest

from control_plane.core.endpoints import TritonEndpoints
from control_plane.core.errors import ModelLoadFailed, ModelNotFound, Overloaded, UpstreamUnavailable
from control_plane.core.infer_call import InferCall
from control_plane.fleet.domain.fleet import Server
from control_plane.fleet.domain.memory import DesiredState
from control_plane.fleet.leadership.leader_requests import LeaderForwarding
from control_plane.fleet.leadership.reports import ReportBuilder
from control_plane.models.domain.description import Tier
from control_plane.workers.messages.to_workers import ModelsChanged, UpstreamSilence
from tests.fakes import FakeUpstream
from tests.fakes.stores.leader_channel import FakeLeaderChannel
from tests.unit.fleet.fleet_bench import READY, TimedControl, call, model
from tests.unit.fleet.leadership.leader_requests_bench import Gateway
from tests.unit.fleet.leadership.leader_requests_bench import serving as gateways_serving
from tests.unit.workers.worker_bench import Parent, Worker, serving

pytestmark = pytest.mark.virtual_time


async def test_a_silent_server_is_avoided_by_all_workers_also_by_one_that_starts_later() -> None:
    parent = Parent(servers=2)
    async with serving(parent) as workers:
        for triton in parent.tritons.values():
            triton.states["a"] = READY
        await asyncio.sleep(1.0)
        parent.servers.members["s0"].fell_silent()
        later = Worker(parent, "later")
        for worker in (*workers, later):
            assert worker.server("s0").is_silent
        assert {await worker.use("a") for worker in workers for _ in range(10)} == {"s1"}
        parent.servers.members["s0"].heard()
        assert not any(worker.server("s0").is_silent for worker in workers)
        assert not any(isinstance(each, UpstreamSilence) for each in Worker(parent, "last").told)


class TestLoads:
    async def test_what_workers_want_their_parent_loads_once_and_they_go_on_at_once(self) -> None:
        parent = Parent(servers=2)
        async with serving(parent) as workers:
            parent.tritons["s0"].load_s["a"] = parent.tritons["s1"].load_s["a"] = 1.23
            began_s = parent.now_s()
            await asyncio.gather(*(worker.use("a") for worker in workers for _ in range(5)))
            assert parent.now_s() - began_s < 1.23 + 0.2  # the parent itself looks at the index
            assert parent.said == ["load a"]
            await asyncio.sleep(5.0)
            assert parent.said == ["load a"]

    async def test_more_models_than_memory_are_served_to_all(self) -> None:
        parent = Parent(*(model(name) for name in "abcdef"))
        async with serving(parent) as workers:
            for _ in range(3):
                for name in "abcdef":
                    await asyncio.gather(*(worker.use(name) for worker in workers))
            assert parent.said.count("load a") == 3

    async def test_a_replica_that_only_a_worker_uses_is_not_evicted(self) -> None:
        parent = Parent()
        async with serving(parent) as (one, other):
            using = asyncio.get_running_loop().create_task(one.use("a", for_s=60.0))
            await asyncio.sleep(30.0)
            await other.use("b")
            await other.use("c")
            assert parent.server().replicas.keys() == {"a", "c"}
            assert parent.replica("a").in_flight == 1
            await using

    async def test_what_a_worker_that_is_killed_had_under_way_is_soon_nobodys(self) -> None:
        parent = Parent()
        async with serving(parent) as (one, other):
            using = asyncio.get_running_loop().create_task(one.use("a", for_s=1000.0))
            await asyncio.sleep(5.0)
            assert parent.replica("a").in_flight == 1
            one.is_alive = False
            await asyncio.sleep(5.0)
            assert parent.replica("a").in_flight == 0
            await other.use("b")
            await other.use("c")
            assert "a" not in parent.server().replicas
            using.cancel()

    async def test_what_it_is_worth_is_what_all_of_them_use_and_measure(self) -> None:
        parent = Parent()
        async with serving(parent) as workers:
            for _ in range(50):
                await asyncio.gather(*(worker.use("a", for_s=0.1) for worker in workers))
            await asyncio.sleep(1.0)
            facts = parent.state.fleet.models["a"]
            assert facts.rate_slow == pytest.approx(100 / 900, rel=0.1)
            assert facts.service_s == pytest.approx(0.1, rel=0.1)

    async def test_a_model_that_is_busy_by_all_of_them_together_gets_another_replica(self) -> None:
        parent = Parent(servers=2)
        async with serving(parent) as workers:
            await workers[0].use("a", for_s=0.2)
            await asyncio.gather(*(worker.use("a", for_s=5.0) for worker in workers for _ in range(40)))
            assert parent.said == ["load a", "load a"]

    async def test_a_failure_is_told_to_who_waits_in_a_worker(self) -> None:
        parent = Parent()
        async with serving(parent) as (one, _):
            parent.tritons["s0"].failures["a"] = ModelLoadFailed("its weights are missing")
            began_s = parent.now_s()
            with pytest.raises(Overloaded, match="its weights are missing"):
                await one.use("a", timeout_s=3.0)
            assert parent.now_s() - began_s < 2.0
            assert parent.said == ["load a"]
            del parent.tritons["s0"].failures["a"]
            await asyncio.sleep(4.0)
            with pytest.raises(Overloaded, match="is being tried again: its weights are missing"):
                await one.use("a")
            await asyncio.sleep(2.0)
            await one.use("a", timeout_s=0.1)


class TestKnowing:
    async def test_what_has_been_unloaded_is_not_found_and_found_again_once_it_is_offered(self) -> None:
        parent = Parent()
        async with serving(parent) as workers:
            parent.state.apply_wishes({"a": DesiredState(is_suspended=True)})
            parent.for_workers.publish_changes()
            for worker in workers:
                with pytest.raises(ModelNotFound):
                    await worker.use("a")
            parent.state.apply_wishes({})
            parent.for_workers.publish_changes()
            for worker in workers:
                await worker.use("a")

    async def test_only_what_changes_is_told(self) -> None:
        parent = Parent(*(model(f"m{number}", 1) for number in range(2500)))
        async with serving(parent, 1) as (worker,):
            known = [message for message in worker.told if isinstance(message, ModelsChanged)]
            assert [len(message.models) for message in known] == [1000, 1000, 500]
            assert worker.fleet.state.fleet.models.keys() == parent.state.fleet.models.keys()
            worker.told.clear()
            await asyncio.sleep(20.0)
            assert worker.told == []
            parent.state.fleet.models["m7"].load_s *= 1.05
            await asyncio.sleep(1.0)
            assert worker.told == []
            parent.state.fleet.models["m7"].tier = Tier.COLD
            parent.state.fleet.models["m8"].load_s *= 2
            parent.described.models.pop("m9")
            await asyncio.sleep(10.0)
            assert {name for message in worker.told if isinstance(message, ModelsChanged) for name in message.models} == {
                "m7",
                "m8",
                "m9",
            }
            assert "m9" not in worker.fleet.state.fleet.models
            assert len(worker.told) <= 4

    async def test_one_that_begins_later_knows_as_much(self) -> None:
        parent = Parent(servers=2)
        async with serving(parent) as (one, _):
            await asyncio.gather(one.use("a"), one.use("b"), one.use("c"))
            parent.tritons["s0"].failures["d"] = parent.tritons["s1"].failures["d"] = ModelLoadFailed("bad")
            with pytest.raises(Overloaded):
                await one.use("d", timeout_s=3.0)
            await asyncio.sleep(1.0)
            late = Worker(parent, "late")
            for name, server in one.fleet.state.fleet.servers.items():
                assert {each.model: each.state for each in late.server(name).replicas.values()} == {
                    each.model: each.state for each in server.replicas.values()
                }
                assert (late.server(name).is_up, late.server(name).budget_bytes) == (True, 100)
            assert late.fleet.state.measurements.why_quarantined("d") == "bad"

    async def test_a_replica_stays_the_same_as_long_as_it_is_and_another_in_its_place_is_another(self) -> None:
        parent = Parent()
        async with serving(parent) as (one, _):
            await one.use("a")
            before = one.replica("a")
            await asyncio.sleep(5.0)
            assert one.replica("a") is before
            parent.state.observe("s0", [])
            await parent.reconciler.poll_index()
            await asyncio.sleep(1.0)
            assert one.replica("a").state is READY
            assert one.replica("a") is not before

    async def test_what_a_request_did_not_find_there_is_seen_again_if_it_is(self) -> None:
        parent = Parent()
        async with serving(parent) as (one, _):
            claim = await one.fleet.router.acquire(call("a"), deadline_s=100.0)
            claim.release(answered=False)
            one.fleet.router.note_missing(claim)
            assert "a" not in one.server().replicas
            await one.use("a")
            assert parent.said == ["load a"], "it was there"

    async def test_what_others_have_under_way_counts_in_the_choice(self) -> None:
        parent = Parent(model("a", max_replicas=2), servers=2)
        async with serving(parent) as (one, other):
            for server in ("s0", "s1"):
                parent.tritons[server].states["a"] = READY
            await asyncio.sleep(1.0)
            using = [asyncio.get_running_loop().create_task(one.use("a", for_s=20.0)) for _ in range(4)]
            await asyncio.sleep(1.0)
            assert one.server().work_s == other.server().work_s > 0
            assert one.server("s1").work_s == other.server("s1").work_s > 0
            await asyncio.gather(*using)
            await asyncio.sleep(1.0)
            assert other.server().work_s == other.server("s1").work_s == 0.0
            assert other.replica("a").in_flight == 0


class TestTroubles:
    async def test_a_server_that_one_of_them_ejects_gets_nothing_from_the_others(self) -> None:
        parent = Parent(servers=3)
        async with serving(parent) as (one, other):
            for server in ("s0", "s1", "s2"):
                parent.tritons[server].states["a"] = READY
            await asyncio.sleep(1.0)
            claims = [await one.fleet.router.acquire(call("a"), deadline_s=100.0) for _ in range(20)]
            for claim in claims:
                claim.release(answered=False)
                if claim.server.name == "s0":
                    one.fleet.state.ejection.failed(claim)
            await asyncio.sleep(2.0)  # two ticks and a report
            assert one.server().is_ejected
            assert parent.server().is_ejected
            assert other.server().is_ejected
            assert {await other.use("a") for _ in range(20)} <= {"s1", "s2"}
            one.is_alive = False
            await asyncio.sleep(5.0)
            assert not parent.server().is_ejected
            assert not other.server().is_ejected

    async def test_where_each_ejects_another_all_are_asked(self) -> None:
        parent = Parent(servers=2)
        async with serving(parent) as (one, _):
            one.fleet.state.ejection.by_others = {"x": frozenset({"s0"}), "y": frozenset({"s1"})}
            one.fleet.state.ejection.judge()
            assert not one.server().is_ejected
            assert not one.server("s1").is_ejected

    async def test_a_replica_whose_process_has_died_is_loaded_anew_by_the_parent(self) -> None:
        parent = Parent()
        async with serving(parent) as (one, _):
            for _ in range(3):
                claim = await one.fleet.router.acquire(call("a"), deadline_s=100.0)
                claim.release(answered=False)
                one.fleet.router.note_dead_stub(claim, "a")
            await asyncio.sleep(5.0)
            assert len([each for each in parent.said if each == "load a"]) == 2
            await one.use("a")


class TestServers:
    async def test_when_one_dies_its_models_are_loaded_elsewhere(self) -> None:
        parent = Parent(servers=2)
        async with serving(parent) as workers:
            at = await workers[0].use("a")
            parent.kill(at)
            assert not workers[1].server(at).is_up
            assert not workers[1].server(at).replicas
            for worker in workers:
                assert await worker.use("a") != at
            assert parent.said == ["load a", "load a"]

    async def test_one_joins_and_leaves(self) -> None:
        parent = Parent()
        async with serving(parent) as workers:
            member = parent.servers.add("late")
            parent.state.join(Server("late", 500, "long", {"zone": "b"}, is_up=False))
            control = TimedControl(sizes={"a": 40}, states={"a": READY})
            member.up(FakeUpstream(TritonEndpoints("late", 1, 2, None), control=control))
            parent.state.observe("late", await control.index())
            await asyncio.sleep(0.1)
            for worker in workers:
                seen = worker.server("late")
                assert (seen.is_up, seen.budget_bytes, seen.pool, seen.labels) == (True, 500, "long", {"zone": "b"})
                assert worker.fleet.state.fleet.pools["long"] == {"late": seen}
                assert await worker.use("a") == "late"
            parent.state.fleet.servers["late"].is_draining = True
            parent.state.changed()
            await asyncio.sleep(0.1)
            assert workers[0].server("late").is_draining
            member.down("it leaves")
            parent.servers.remove("late")
            for worker in workers:
                assert worker.servers.members.keys() == worker.fleet.state.fleet.servers.keys() == {"s0"}
                assert "long" not in worker.fleet.state.fleet.pools
                assert await worker.use("a") == "s0"

    async def test_of_one_that_has_left_nothing_stays(self) -> None:
        parent = Parent()
        async with serving(parent) as (one, _):
            router, mirror = one.fleet.router, one.fleet._mirror
            router.suspect = lambda server, model, since_s: None
            member = parent.servers.add("late")
            parent.state.join(Server("late", 500, is_up=False))
            control = TimedControl(sizes={"a": 40}, states={"a": READY})
            member.up(FakeUpstream(TritonEndpoints("late", 1, 2, None), control=control))
            parent.state.observe("late", await control.index())
            await asyncio.sleep(0.1)
            claim = await router.acquire(call("a"), deadline_s=100.0)
            claim.release(answered=True)
            router.answered(call("a"), claim)
            assert "late" in router._silences
            assert "late" in mirror._lives
            member.down("it leaves")
            parent.servers.remove("late")
            await asyncio.sleep(1.0)
            assert "late" not in router._silences
            assert "late" not in mirror._lives

    async def test_a_sequence_whose_server_is_gone_fails_clearly_and_begins_anew(self) -> None:
        parent = Parent(model("a", holds=True), servers=2)
        async with serving(parent) as (one, _):
            first = InferCall("a", "", "", (), sequence_id="7", starts_sequence=True)
            claim = await one.fleet.router.acquire(first, deadline_s=100.0)
            claim.release(answered=True)
            await asyncio.sleep(1.0)
            assert parent.replica("a", claim.server.name).sequences == 1
            parent.kill(claim.server.name)
            with pytest.raises(UpstreamUnavailable, match="start it anew"):
                await one.fleet.router.acquire(InferCall("a", "", "", (), sequence_id="7"), deadline_s=100.0)
            claim = await one.fleet.router.acquire(first, deadline_s=100.0)
            claim.release(answered=True)


class TestSeveralGateways:
    async def test_what_workers_want_and_use_is_passed_on_to_the_leader(self) -> None:
        line, loop = FakeLeaderChannel(), asyncio.get_running_loop()
        leader, parent = Gateway(line, owns=True), Parent()
        parent.is_leader = False
        own = ReportBuilder(parent.state, parent.servers, process="parent")
        asking = LeaderForwarding(line, parent.state, own=own, is_leader=lambda: False)
        parent.request_replica = asking.request_replica
        async with gateways_serving(leader):
            leader.share(parent)
            async with serving(parent) as workers:
                tasks = [loop.create_task(asking.run()), loop.create_task(asking.poll_while_waiting(parent.reconciler.poll_index))]
                leader.tritons["s0"].load_s["a"] = 1.23
                began_s = leader.now_s()
                using = [loop.create_task(worker.use("a", for_s=10.0)) for worker in workers for _ in range(3)]
                await asyncio.sleep(5.0)
                assert leader.said == ["load a"]
                assert leader.replica("a").in_flight == parent.replica("a").in_flight == 6
                await asyncio.gather(*using)
                assert leader.now_s() - began_s < 1.23 + 10.0 + 0.3
                await asyncio.sleep(2.0)
                assert leader.replica("a").in_flight == parent.replica("a").in_flight == 0
                assert sum(report.uses.get("a", 0) for report in line.all_told) == 6
                assert leader.state.fleet.models["a"].rate_slow == pytest.approx(6 / 900, rel=0.05)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
