"""The messages that workers of a fleet are sent, and when."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.leadership.report import LoadReport, ReplicaUse, Wanted
from control_plane.fleet.domain.memory import DesiredState
from control_plane.fleet.leadership.reports import ReportCollector
from control_plane.fleet.view.state import FleetState
from control_plane.triton.servers import Servers
from control_plane.workers.messages.between_workers import LoadReported
from control_plane.workers.messages.from_workers import Alive, UnloadModel
from control_plane.workers.messages.to_workers import (
    Changed,
    FingerprintsChanged,
    Listen,
    ModelsChanged,
    ReplicasChanged,
    ServersChanged,
    UpstreamDown,
    UpstreamUp,
    WorkedOnElsewhere,
)
from control_plane.workers.parent.fleet_publisher import FleetPublisher
from tests.aio import settle
from tests.fakes import FakeUpstream
from tests.unit.fleet.fleet_bench import model
from tests.unit.workers.workers_bench import KNOWN, Bench, opened

pytestmark = pytest.mark.virtual_time


class TestFleet:
    """A fleet of two servers, of which the first is up with model a."""

    def fleet(self, bench: Bench) -> None:
        servers = Servers(None, ("s0", "s1"))
        self.state = state = FleetState(servers, budget_bytes=100, now_s=asyncio.get_running_loop().time, load_timeout_s=0.1)
        state.specs.describe({"a": model("a"), "b": model("b")})
        self.reports = ReportCollector(state, servers, want=lambda wanted: self.wanted.append(wanted))
        self.wanted: list[Wanted] = []
        self.for_workers = FleetPublisher(state, servers, reports=self.reports)
        bench.workers.join_fleet(self.for_workers)
        servers.members["s0"].up(FakeUpstream())
        state.observe("s0", [ModelVersion("a", "1", ModelState.READY, "")])

    async def test_they_know_all_of_it_before_they_listen_and_so_does_one_that_comes_back(self) -> None:
        async with opened(1, prepare=self.fleet) as bench:
            bench.started[0].end()
            await asyncio.sleep(1.5)
            assert len(bench.started) == 2
            for worker in bench.started:
                kinds = [type(message) for message in worker.told]
                assert kinds[0] is ServersChanged
                assert worker.messages_of(UpstreamUp)[0].server == "s0"
                assert worker.messages_of(UpstreamDown)[0].server == "s1"
                (models,) = worker.messages_of(ModelsChanged)
                assert models.models.keys() == {"a", "b"}
                assert max(kinds.index(ModelsChanged), kinds.index(ReplicasChanged)) < kinds.index(Listen)

    async def test_what_they_report_is_part_of_the_picture_(self) -> None:
        async with opened(prepare=self.fleet) as bench:
            told = LoadReport("w", {"a": 1}, {}, {"127.0.0.1:2": {"a": ReplicaUse(3, 0)}}, (Wanted("b", 0),))
            bench.started[0].say(LoadReported(told))
            await settle()
            assert self.state.fleet.servers["s0"].replicas["a"].in_flight == 3
            assert self.wanted == [Wanted("b", 0)]

    async def test_each_is_told_what_replicas_work_on_for_the_others_when_that_changes(self) -> None:
        async with opened(3, prepare=self.fleet) as bench:
            first, second, third = bench.started
            for _ in range(2):
                first.say(Alive((("s0", "a", 5.0),), (("s0", "a", 4.0), ("s0", "b", 6.0))))
                second.say(Alive((("s0", "a", 4.5),)))
                third.say(Alive())
                await settle()
            assert first.messages_of(WorkedOnElsewhere) == [WorkedOnElsewhere((("s0", "a", 4.5),))]
            assert second.messages_of(WorkedOnElsewhere) == [WorkedOnElsewhere((("s0", "a", 4.0), ("s0", "b", 6.0)))]
            assert third.messages_of(WorkedOnElsewhere)[-1] == WorkedOnElsewhere((("s0", "a", 4.0), ("s0", "b", 6.0)))
            first.say(Alive())
            await settle()
            assert second.messages_of(WorkedOnElsewhere)[-1] == WorkedOnElsewhere(())

    async def test_what_waits_behind_a_request_that_was_given_up_shows_no_long_work(self) -> None:
        async with opened(2, prepare=self.fleet) as bench:
            first, second = bench.started
            for given_up_s, oldest_s in ((4.6, 4.5), (4.4, inf)):
                first.say(Alive((("s0", "a", 5.0),), (("s0", "a", given_up_s), ("s0", "b", 1.0))))
                second.say(Alive((("s0", "a", 4.5),)))
                await settle()
                assert bench.workers.oldest_s("s0", "a") == oldest_s

    async def test_what_came_of_a_change_is_told_after_what_it_changed(self) -> None:
        async with opened(prepare=self.fleet) as bench:
            self.state.apply_wishes({"a": DesiredState(is_suspended=True)})
            bench.started[0].say(UnloadModel(1, "a", False))
            await settle()
            for worker in bench.started:
                *_, models = worker.messages_of(ModelsChanged)
                seen = models.models["a"]
                assert seen is not None
                assert seen.is_suspended
            assert bench.started[0].told[-1] == Changed(1)

    async def test_a_replica_is_ready_to_them_only_once_they_know_what_its_answers_are_made_of(self) -> None:
        async with opened(1, prepare=self.fleet) as bench:
            told = bench.started[0].told
            self.state.awaiting_fingerprint.add(("s0", "b"))
            self.see("a", "b")
            assert bench.started[0].messages_of(ReplicasChanged)[-1].replicas["b"].state is ModelState.LOADING
            await bench.workers.fingerprints.publish({"b": KNOWN})
            self.state.awaiting_fingerprint.discard(("s0", "b"))
            self.see("a", "b")
            seen = next(at for at, each in enumerate(told) if isinstance(each, ReplicasChanged) and is_ready(each, "b"))
            published = next(at for at, each in enumerate(told) if isinstance(each, FingerprintsChanged) and each.changes.get("b"))
            assert published < seen

    async def test_they_are_told_of_a_load_that_hangs(self) -> None:
        async with opened(1, prepare=self.fleet) as bench:
            for hangs in (False, True):
                self.state.observe("s0", [ModelVersion("b", "1", ModelState.LOADING, "")])
                self.for_workers.publish_changes()
                assert bench.started[0].messages_of(ReplicasChanged)[-1].replicas["b"].hangs is hangs
                await asyncio.sleep(0.2)

    @pytest.mark.parametrize("has_hung", [False, True])
    async def test_they_are_told_whether_a_stub_died_or_was_ended_as_it_hung(self, has_hung: bool) -> None:
        async with opened(1, prepare=self.fleet) as bench:
            self.see("b")
            server = self.state.fleet.servers["s0"]
            self.state.mark_loading(server, server.replicas["b"], has_hung=has_hung)
            self.for_workers.publish_changes()
            seen = bench.started[0].messages_of(ReplicasChanged)[-1].replicas["b"]
            assert (seen.is_dead, seen.has_hung) == (True, has_hung)

    def see(self, *names: str) -> None:
        self.state.observe("s0", [ModelVersion(name, "1", ModelState.READY, "") for name in names])
        self.for_workers.publish_changes()


def is_ready(seen: ReplicasChanged, model_name: str) -> bool:
    return model_name in seen.replicas and seen.replicas[model_name].state is ModelState.READY


async def test_a_view_that_takes_long_to_compare_is_compared_less_often() -> None:
    loop, busy_s, times = asyncio.get_running_loop(), [0.0], list[float]()
    servers = Servers(None, ("s0",))
    state = FleetState(servers, budget_bytes=100, now_s=lambda: loop.time() + busy_s[0])
    publisher = FleetPublisher(state, servers, reports=ReportCollector(state, servers, want=lambda wanted: None))

    def publish(*, of_models: bool = True) -> None:
        times.append(loop.time())
        busy_s[0] += 0.04

    publisher.publish_changes = publish  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(publisher.run())
        for _ in range(1000):
            state.changed()
            await asyncio.sleep(0.001)
        running.cancel()
    assert 5 <= len(times) <= 15
