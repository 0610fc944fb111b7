from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from control_plane.core.endpoints import TritonEndpoints
from control_plane.core.model import ModelVersion
from control_plane.fleet.domain.fleet import Replica, Server
from control_plane.fleet.domain.leadership.report import LoadReport, ReplicaUse, Wanted
from control_plane.fleet.domain.memory import Measured
from control_plane.fleet.leadership.reports import SILENCE_S, ReportBuilder, ReportCollector, _used
from control_plane.fleet.view.state import FleetState
from control_plane.triton.servers import Servers
from tests.fakes import FakeUpstream
from tests.unit.fleet.fleet_bench import LOADING, READY, model

SERVICE_S = 0.25


class Process:
    """One process's view of two servers: s0 with models a and b ready, and s1 with a. A test sets the
    clock."""

    def __init__(self, name: str = "p", *, order: tuple[int, int] = (0, 1)) -> None:
        """`order` is the order in which the process names the servers."""
        self.at_s = 100.0
        self.servers = Servers(None, ("s0", "s1"))
        self.state = FleetState(self.servers, budget_bytes=100, now_s=lambda: self.at_s)
        self.state.specs.recall({model: Measured(0, service_s=SERVICE_S) for model in "ab"})
        self.state.specs.describe({each.spec.name: each for each in (model("a"), model("b"))})
        for number, at in enumerate(order):
            self.servers.members[f"s{number}"].up(FakeUpstream(TritonEndpoints("::1", 1, 100 + at, None)))
            self.see(f"s{number}", *("ab" if at == 0 else "a"))
        self.own = ReportBuilder(self.state, self.servers, process=name)
        self.wants: list[Wanted] = []
        self.revived: list[tuple[str, str]] = []
        self.others = ReportCollector(
            self.state, self.servers, want=self.wants.append, repair=lambda server, model: self.revived.append((server, model))
        )

    def see(self, server: str, *models: str) -> None:
        self.state.observe(server, [ModelVersion(name, "1", READY, "") for name in models])

    def server(self, name: str = "s0") -> Server:
        return self.state.fleet.servers[name]

    def replica(self, name: str, server: str = "s0") -> Replica:
        return self.server(server).replicas[name]


@pytest.fixture
def process() -> Process:
    return Process()


def report(process: str = "x", *, in_flight: int = 0, sequences: int = 0, address: str = "[::1]:100") -> LoadReport:
    """Make a report of what is in flight at model a."""
    return LoadReport(process, replicas={address: {"a": ReplicaUse(in_flight, sequences)}})


class Asked(Mapping[Replica, ReplicaUse]):
    """What other processes have in flight, which is nothing, with the models that it was asked for."""

    def __init__(self) -> None:
        self.models: list[str] = []

    def __getitem__(self, replica: Replica) -> ReplicaUse:
        self.models.append(replica.model)
        raise KeyError(replica)

    def __iter__(self) -> Iterator[Replica]:
        return iter(())

    def __len__(self) -> int:
        return 0


class TestMaking:
    def test_nothing_is_told_of_nothing(self, process: Process) -> None:
        assert process.own.make() is None

    def test_uses_are_told_once(self, process: Process) -> None:
        process.state.count_requests("a")
        process.state.count_requests("a")
        process.state.count_requests("b")
        assert process.own.make() == LoadReport("p", uses={"a": 2, "b": 1})
        assert process.own.make() is None

    def test_what_is_under_way_is_told_as_long_as_it_is_and_then_that_it_is_over(self, process: Process) -> None:
        claim = process.state.reserve("a", "s1")
        assert claim is not None
        process.replica("b").sequences += 1
        told = LoadReport("p", replicas={"[::1]:100": {"b": ReplicaUse(0, 1)}, "[::1]:101": {"a": ReplicaUse(1, 0)}})
        assert [process.own.make(), process.own.make()] == [told, told]
        claim.release(answered=True)
        process.replica("b").sequences -= 1
        assert process.own.make() == LoadReport("p")
        assert process.own.make() is None

    def test_what_is_wanted_is_told_once_with_what_was_seen_then(self, process: Process) -> None:
        process.own.want("a")
        process.own.want("c", "long")
        process.see("s1")
        assert process.own.make() == LoadReport("p", wanted=(Wanted("a", 2), Wanted("c", 0, "long")))
        assert process.own.make() is None

    def test_of_thousands_of_replicas_only_those_in_use_are_looked_into(self, process: Process) -> None:
        asked = Asked()
        assert process.state.reserve("a", "s0") is not None
        assert _used(process.server(), asked) == {"a": ReplicaUse(1, 0)}
        assert asked.models == ["a"]

    def test_the_leader_keeps_nothing_to_tell_later(self, process: Process) -> None:
        process.state.count_requests("a")
        process.own.want("a")
        process.own.drop()
        assert process.own.make() is None


class TestTaking:
    def test_it_is_part_of_the_picture(self, process: Process) -> None:
        process.others.apply(report(in_flight=2, sequences=1))
        assert (process.replica("a").in_flight, process.replica("a").sequences, process.replica("a").last_used_s) == (2, 1, 100.0)
        assert process.server().work_s == 2 * SERVICE_S
        assert process.replica("a", "s1").in_flight == 0

    def test_a_new_one_replaces_that_of_the_same_process_only(self, process: Process) -> None:
        process.others.apply(report("x", in_flight=2))
        process.others.apply(report("y", in_flight=5, sequences=1))
        process.others.apply(report("x", in_flight=1))
        assert (process.replica("a").in_flight, process.replica("a").sequences) == (6, 1)
        assert process.server().work_s == 6 * SERVICE_S
        process.others.apply(LoadReport("x"))
        process.others.apply(LoadReport("y"))
        assert (process.replica("a").in_flight, process.replica("a").sequences, process.server().work_s) == (0, 0, 0.0)

    def test_uses_are_counted_in_the_rates_and_not_told_as_if_they_were_new_to_the_leader(self, process: Process) -> None:
        other = Process()
        for _ in range(3):
            other.state.count_requests("a")
        process.others.apply(LoadReport("x", uses={"a": 3, "nonesuch": 7}))
        assert process.state.fleet.models["a"].rate_fast == pytest.approx(other.state.fleet.models["a"].rate_fast)
        assert process.state.fleet.models["a"].last_used_s == 100.0

    def test_who_passes_on_tells_others_and_its_own_as_one(self, process: Process) -> None:
        claim = process.state.reserve("a", "s0")
        process.state.count_requests("a")
        assert claim is not None
        process.others.apply(LoadReport("x", uses={"a": 3}, replicas=report(in_flight=2).replicas))
        assert process.own.make() == LoadReport("p", uses={"a": 4}, replicas={"[::1]:100": {"a": ReplicaUse(3, 0)}})

    def test_what_is_wanted_is_asked_for_once_all_that_is_under_way_is_known(self, process: Process) -> None:
        seen: list[tuple[Wanted, int]] = []
        others = ReportCollector(process.state, process.servers, want=lambda wanted: seen.append((wanted, process.replica("a").in_flight)))
        others.apply(LoadReport("x", replicas=report(in_flight=2).replicas, wanted=(Wanted("a", 2), Wanted("c", 0))))
        assert seen == [(Wanted("a", 2), 2), (Wanted("c", 0), 2)]

    def test_who_does_not_pass_on_tells_its_own_only(self, process: Process) -> None:
        others = ReportCollector(process.state, process.servers, want=process.wants.append, passes_on=False)
        own = ReportBuilder(process.state, process.servers, process="p", without=others)
        others.apply(LoadReport("x", uses={"a": 3}, replicas=report(in_flight=2, sequences=1).replicas))
        assert process.replica("a").in_flight == 2
        assert process.state.fleet.models["a"].rate_fast > 0
        assert own.make() is None
        claim = process.state.reserve("a", "s0")
        process.state.count_requests("a")
        assert claim is not None
        assert own.make() == LoadReport("p", uses={"a": 1}, replicas={"[::1]:100": {"a": ReplicaUse(1, 0)}})

    def test_processes_may_name_servers_in_any_order(self) -> None:
        one, other = Process("one"), Process("other", order=(1, 0))
        claim = one.state.reserve("b", "s0")
        assert claim is not None
        told = one.own.make()
        assert told is not None
        other.others.apply(told)
        assert other.replica("b", "s1").in_flight == 1

    @pytest.mark.parametrize(
        "told",
        [
            pytest.param(report(in_flight=1, address="elsewhere:1"), id="a server that this process does not have"),
            pytest.param(LoadReport("x", replicas={"[::1]:101": {"b": ReplicaUse(1)}}), id="a replica that it does not see"),
        ],
    )
    def test_what_it_does_not_know_does_not_count(self, process: Process, told: LoadReport) -> None:
        process.others.apply(told)
        process.others.apply(LoadReport("x"))
        assert all(replica.in_flight == 0 for server in process.state.fleet.servers.values() for replica in server.replicas.values())
        assert process.server().work_s == process.server("s1").work_s == 0.0

    def test_a_replica_that_came_in_place_of_another_owes_nothing(self, process: Process) -> None:
        process.others.apply(report(in_flight=2, sequences=1))
        upstream = process.servers.get("s0")
        process.servers.members["s0"].down("Triton has ended")
        process.servers.members["s0"].up(upstream)
        process.see("s0", "a")
        process.others.apply(LoadReport("x"))
        assert (process.replica("a").in_flight, process.replica("a").sequences, process.server().work_s) == (0, 0, 0.0)

    def test_work_of_the_leaders_own_stays(self, process: Process) -> None:
        claim = process.state.reserve("a", "s0")
        process.others.apply(report(in_flight=2))
        process.others.apply(LoadReport("x"))
        assert (process.replica("a").in_flight, process.server().work_s) == (1, SERVICE_S)
        assert claim is not None
        process.others.apply(report(in_flight=2))
        claim.release(answered=True)
        assert (process.replica("a").in_flight, process.server().work_s) == (2, 2 * SERVICE_S)

    def test_a_model_that_loads_is_no_exception(self, process: Process) -> None:
        process.state.observe("s0", [ModelVersion("a", "1", LOADING, "")])
        process.others.apply(report(in_flight=1))
        assert process.replica("a").in_flight == 1


class TestServiceTimes:
    def test_are_told_when_they_have_been_measured_and_only_then(self, process: Process) -> None:
        process.state.count_requests("a")
        process.state.count_requests("b")
        process.state.fleet.models["a"].service_s = 0.5
        told = process.own.make()
        assert told is not None
        assert told.services == {"a": 0.5}
        process.state.count_requests("a")
        told = process.own.make()
        assert told is not None
        assert told.services == {}

    @pytest.mark.parametrize(("count", "becomes_s"), [(1, 0.25 + 0.2 * 0.75), (2, 0.25 + 0.36 * 0.75), (1000, 1.0)])
    def test_count_as_if_they_had_been_measured_here(self, process: Process, count: int, becomes_s: float) -> None:
        process.others.apply(LoadReport("x", uses={"a": count}, services={"a": 1.0, "nonesuch": 1.0}))
        assert process.state.fleet.models["a"].service_s == pytest.approx(becomes_s)


class TestTroubles:
    def test_servers_are_ejected_as_long_as_somebody_says_so(self, process: Process) -> None:
        process.others.apply(LoadReport("x", ejected=("[::1]:101", "elsewhere:1")))
        process.others.apply(LoadReport("y", ejected=("[::1]:100", "[::1]:101")))
        assert process.state.ejection.by_others == {"x": {"s1"}, "y": {"s0", "s1"}}
        process.others.apply(LoadReport("y"))
        process.at_s += SILENCE_S + 0.1
        process.others.expire()
        assert process.state.ejection.by_others == {}

    def test_a_process_tells_its_own_and_what_it_passes_on_and_then_that_it_is_over(self, process: Process) -> None:
        process.state.ejection.by_us = frozenset({"s0"})
        process.others.apply(LoadReport("x", ejected=("[::1]:101",)))
        assert process.own.make() == LoadReport("p", ejected=("[::1]:100", "[::1]:101"))
        own = ReportBuilder(process.state, process.servers, process="p", without=process.others)
        assert own.make() == LoadReport("p", ejected=("[::1]:100",)), "what others said they say themselves"
        process.state.ejection.by_us = frozenset()
        assert own.make() == LoadReport("p")
        assert own.make() is None

    def test_replicas_that_have_died_are_told_once_and_revived(self, process: Process) -> None:
        other = Process("other", order=(1, 0))
        other.own.request_repair("s0", "a")
        other.own.request_repair("gone", "a")
        told = other.own.make()
        assert told == LoadReport("other", died=(("[::1]:101", "a"),))
        assert other.own.make() is None
        process.others.apply(told)
        process.others.apply(LoadReport("other", died=(("elsewhere:1", "a"),)))
        assert process.revived == [("s1", "a")]


class TestSilence:
    def test_who_says_nothing_any_more_has_nothing_under_way(self, process: Process) -> None:
        process.others.apply(report("x", in_flight=2))
        process.at_s += SILENCE_S / 2
        process.others.apply(report("y", in_flight=1))
        process.others.expire()
        assert process.replica("a").in_flight == 3
        process.at_s += SILENCE_S / 2 + 0.1
        process.others.expire()
        assert process.replica("a").in_flight == 1

    def test_nothing_is_left_of_any_when_they_tell_another(self, process: Process) -> None:
        process.others.apply(report("x", in_flight=2))
        process.others.apply(report("y", sequences=1))
        process.others.drop()
        assert (process.replica("a").in_flight, process.replica("a").sequences) == (0, 0)
        process.others.expire()
        assert process.server().work_s == 0.0
