from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.core.names import MAX_SIZE_BYTES
from control_plane.fleet.domain.fleet import NEVER_S, Fleet, ModelFacts, Replica, Server
from control_plane.fleet.domain.memory import Measured
from control_plane.fleet.view.models.measurements import FIRST_LOAD_S, FIRST_SERVICE_S, PROCESS_BYTES, Measurements
from control_plane.models.domain.description import DescribedModel, ModelSpec
from tests.unit.fleet.fleet_bench import READY

MIB = 2**20
TODAY_S = 1.7e9


class Bench:
    """Model `a`, whose files have 10 MiB and whose owner declares no size, and model `told`, whose owner
    does."""

    def __init__(self, **known: Measured) -> None:
        self.now_s = 100.0
        self.fleet = Fleet()
        self.measurements = Measurements(self.fleet, now_s=lambda: self.now_s, today_s=lambda: TODAY_S + self.now_s)
        for name, each in known.items():
            self.measurements.recall(name, each)
        self.a = self.describe(DescribedModel(ModelSpec("a"), 10 * MIB))
        self.told = self.describe(DescribedModel(ModelSpec("told", 7 * MIB), 10 * MIB))

    def describe(self, model: DescribedModel, *, fetch_s: float = 0.0) -> ModelFacts:
        facts = self.fleet.models.setdefault(model.spec.name, ModelFacts(model.spec, 0, 0.0, FIRST_SERVICE_S))
        self.measurements.describe(facts, model, fetch_s=fetch_s)
        return facts

    def put(self, *models: str) -> Server:
        server = Server("s0", 1000 * MIB)
        self.fleet.add_server(server)
        for name in models:
            self.fleet.put_replica(server, Replica(name, READY, self.fleet.models[name].resident_bytes, 0.0))
        return server


class TestSizes:
    def test_are_estimated_by_files_and_processes_until_something_is_known(self) -> None:
        bench = Bench()
        both = bench.describe(DescribedModel(ModelSpec("both"), 5 * MIB, steps=frozenset("ab")))
        assert (bench.a.resident_bytes, both.resident_bytes) == (10 * MIB + PROCESS_BYTES, 5 * MIB + 3 * PROCESS_BYTES)
        assert bench.told.resident_bytes == 7 * MIB
        assert not bench.measurements.known

    def test_that_triton_tells_go_before_estimates_and_grow(self) -> None:
        bench = Bench()
        for sizes, found in (
            ({"a": 3 * MIB, "told": MIB, "foreign": 1}, 3),
            ({"a": 5 * MIB}, 5),
            ({"a": 4 * MIB}, 5),
            ({"a": 0}, 5),
            ({}, 5),
        ):
            bench.measurements.note_reported_sizes(sizes)
            assert bench.a.resident_bytes == found * MIB
        assert bench.measurements.known == {"a": Measured(0, 5 * MIB)}
        assert bench.told.resident_bytes == 7 * MIB

    def test_that_the_server_shows_are_the_lot_of_those_that_are_not_declared(self) -> None:
        bench = Bench()
        bench.measurements.loaded("a", 1.0, 30 * MIB)
        bench.put("a", "told")
        bench.measurements.memory_measured("s0", 37 * MIB)
        assert bench.a.resident_bytes == 30 * MIB
        bench.measurements.memory_measured("s0", 47 * MIB)
        assert (bench.a.resident_bytes, bench.told.resident_bytes) == (40 * MIB, 7 * MIB)
        assert bench.measurements.known["a"].resident_bytes == 40 * MIB

    def test_that_are_more_than_there_is_are_taken_for_as_much_as_can_be_told(self) -> None:
        bench = Bench()
        bench.measurements.note_reported_sizes({"a": 2**64})
        assert bench.a.resident_bytes == bench.measurements.known["a"].resident_bytes == MAX_SIZE_BYTES

    def test_are_recalled_for_the_same_files(self) -> None:
        bench = Bench(a=Measured(10 * MIB, 33 * MIB, load_s=7.0), told=Measured(10 * MIB, load_s=3.0))
        assert (bench.a.resident_bytes, bench.a.load_s) == (33 * MIB, 7.0)
        assert (bench.told.resident_bytes, bench.told.load_s) == (7 * MIB, 3.0)

    def test_nothing_is_recalled_of_another_model_of_that_name(self) -> None:
        bench = Bench(a=Measured(11 * MIB, 33 * MIB, 7.0, 0.5, failures=3, quarantined_until_s=TODAY_S + 200, why="bad", answered="q"))
        assert (bench.a.resident_bytes, bench.a.load_s) == (10 * MIB + PROCESS_BYTES, FIRST_LOAD_S)
        assert bench.a.quarantined_until_s == NEVER_S
        assert bench.measurements.first_service_s("a") == FIRST_SERVICE_S
        assert bench.measurements.known == {"a": Measured(10 * MIB, answered="q")}

    def test_one_whose_files_change_is_not_taken_for_smaller_while_it_is_there(self) -> None:
        bench = Bench(a=Measured(10 * MIB, 333 * MIB))
        server = bench.put("a")
        for _ in range(2):
            bench.describe(DescribedModel(ModelSpec("a"), 1 * MIB))
            assert bench.a.resident_bytes == 333 * MIB
        bench.fleet.drop_replica(server, "a")
        bench.describe(DescribedModel(ModelSpec("a"), 1 * MIB))
        assert bench.a.resident_bytes == 1 * MIB + PROCESS_BYTES

    def test_files_that_nobody_can_see_now_are_not_others(self) -> None:
        bench = Bench(a=Measured(0, 33 * MIB))
        assert bench.measurements.known["a"] == Measured(10 * MIB, 33 * MIB)
        bench.describe(DescribedModel(ModelSpec("a"), 0))
        assert bench.measurements.known["a"] == Measured(10 * MIB, 33 * MIB)
        assert bench.a.resident_bytes == 33 * MIB


class TestTimes:
    def test_of_loads_are_from_the_warm_tier_and_the_way_there_is_added(self) -> None:
        bench = Bench()
        bench.describe(DescribedModel(ModelSpec("a"), 10 * MIB), fetch_s=5.0)
        assert bench.a.load_s == FIRST_LOAD_S + 5.0
        bench.measurements.loaded("a", 10.0, None)
        assert (bench.a.load_s, bench.measurements.known["a"].load_s) == (10.0, 10.0)
        bench.describe(DescribedModel(ModelSpec("a"), 10 * MIB), fetch_s=5.0)
        assert bench.a.load_s == 15.0

    def test_of_services_are_taken_down_when_they_are_quite_different(self) -> None:
        bench = Bench(told=Measured(10 * MIB, service_s=2.0))
        bench.told.service_s = 2.5
        bench.measurements.save_service_times()
        assert bench.measurements.known == {"told": Measured(10 * MIB, service_s=2.0)}
        bench.told.service_s, bench.a.service_s = 0.5, 0.1
        bench.measurements.save_service_times()
        assert {name: each.service_s for name, each in bench.measurements.known.items()} == {"told": 0.5, "a": 0.1}
        assert bench.measurements.first_service_s("a") == 0.1


class TestFailures:
    def test_keep_it_out_for_longer_each_time_until_it_is_forgiven(self) -> None:
        bench, found = Bench(), list[float]()
        for number in range(12):
            bench.measurements.failed(bench.a, f"reason {number}")
            assert bench.measurements.why_quarantined("a") == f"reason {number}"
            found.append(bench.a.quarantined_until_s - bench.now_s)
        assert found[:4] == pytest.approx([2, 4, 8, 16])
        assert max(found) == found[-1] == pytest.approx(300)
        assert bench.measurements.known["a"].quarantined_until_s == pytest.approx(TODAY_S + 400)
        bench.now_s += 301
        assert bench.measurements.why_quarantined("a") is None
        bench.measurements.failed(bench.a, "again")
        bench.measurements.forgive("a")
        bench.measurements.forgive("nonesuch")
        assert (bench.measurements.why_quarantined("a"), bench.a.quarantined_until_s) == (None, NEVER_S)
        assert bench.measurements.known == {"a": Measured(0)}

    def test_are_forgotten_with_the_files(self) -> None:
        bench = Bench(a=Measured(10 * MIB))
        bench.measurements.failed(bench.a, "no weights")
        bench.describe(DescribedModel(ModelSpec("a"), 11 * MIB))
        assert (bench.measurements.why_quarantined("a"), bench.a.quarantined_until_s) == (None, NEVER_S)

    def test_are_forgotten_with_a_change_of_the_files_that_leaves_their_size(self) -> None:
        bench = Bench()
        described = DescribedModel(ModelSpec("a"), 10 * MIB, changed_ns=1)
        bench.measurements.failed(bench.describe(described), "no weights")
        bench.describe(described)
        assert bench.measurements.why_failed("a") == "no weights"
        bench.describe(replace(described, changed_ns=2))
        assert (bench.measurements.why_failed("a"), bench.a.is_on_trial) == (None, False)

    @pytest.mark.parametrize(
        ("known", "is_transient", "is_on_trial"),
        [
            pytest.param(Measured(10 * MIB), False, True, id="never loaded"),
            pytest.param(Measured(10 * MIB, load_s=2.0), False, False, id="loaded before"),
            pytest.param(Measured(10 * MIB), True, False, id="its store was away"),
            pytest.param(Measured(10 * MIB, failures=1, is_on_trial=True), True, True, id="its store was away after it had failed"),
        ],
    )
    def test_put_a_model_on_trial_that_has_never_been_loaded(self, known: Measured, is_transient: bool, is_on_trial: bool) -> None:
        bench = Bench(a=known)
        bench.measurements.failed(bench.a, "no", is_transient=is_transient)
        assert bench.a.is_on_trial is is_on_trial
        bench.measurements.forgive("a")
        assert not bench.a.is_on_trial
        assert not bench.measurements.record_of("a").is_on_trial

    def test_on_a_second_server_are_the_models_fault_and_tell_nothing_of_the_servers(self) -> None:
        bench = Bench()
        servers = [Server(name, 1000 * MIB) for name in ("s0", "s1")]
        for each in servers:
            bench.fleet.add_server(each)
        bench.measurements.failed(bench.a, "no weights", server="s0")
        bench.measurements.failed(bench.told, "no weights", server="s0")
        assert (servers[0].failed_only_here, bench.a.failed_only_on) == ({"a", "told"}, "s0")
        for _ in range(2):
            bench.measurements.failed(bench.a, "no weights", server="s1")
            assert (servers[0].failed_only_here, servers[1].failed_only_here, bench.a.failed_only_on) == ({"told"}, set(), "")
        bench.measurements.succeeded(bench.a, servers[0])
        assert (servers[0].failed_s, servers[0].failed_only_here, servers[1].failed_s) == ({"told": 100.0}, set(), {"a": 100.0})
        bench.measurements.forgive("a")
        assert servers[1].failed_s == {}

    def test_that_are_seen_from_the_files_tell_nothing_of_the_server(self) -> None:
        bench = Bench()
        server = bench.put()
        bench.measurements.failed(bench.a, "no weights", server="s0", has_begun=False)
        assert (server.failed_s, server.failed_only_here) == ({"a": 100.0}, set())

    def test_of_other_processes_count_with_their_reason(self) -> None:
        known = Measured(10 * MIB, failures=4, quarantined_until_s=TODAY_S + 120, why="no weights")
        bench = Bench()
        bench.measurements.recall("a", known)
        assert bench.a.quarantined_until_s == pytest.approx(120.0)
        assert bench.measurements.why_quarantined("a") == "no weights"
        bench.measurements.failed(bench.a, "no weights")
        assert bench.a.quarantined_until_s - bench.now_s == pytest.approx(32.0)
        bench.measurements.recall("a", Measured(10 * MIB))
        assert (bench.measurements.why_quarantined("a"), bench.a.quarantined_until_s) == (None, NEVER_S)

    def test_a_clock_that_is_wrong_elsewhere_keeps_nothing_out_for_long(self) -> None:
        bench = Bench()
        bench.measurements.recall("a", Measured(10 * MIB, failures=1, quarantined_until_s=TODAY_S + 1e9, why="?"))
        assert bench.a.quarantined_until_s - bench.now_s == 300.0

    def test_a_reason_is_text_that_can_be_written_and_not_too_long(self) -> None:
        bench = Bench()
        bench.measurements.failed(bench.a, "\udcff" + "ä" * 10_000)
        assert len(bench.measurements.known["a"].why.encode()) <= 2003


def test_what_is_forgotten_is_not_known() -> None:
    bench = Bench(a=Measured(10 * MIB, 33 * MIB))
    bench.measurements.recall("a", None)
    bench.measurements.recall("a", None)
    bench.describe(DescribedModel(ModelSpec("a"), 10 * MIB))
    assert (bench.a.resident_bytes, bench.measurements.known) == (10 * MIB + PROCESS_BYTES, {})


class TestTooLargeSizes:
    """Models `a`, `b` and `c`, each of which took 100 MiB when it was loaded."""

    def bench(self) -> tuple[Bench, Server]:
        bench = Bench()
        for name in "abc":
            bench.describe(DescribedModel(ModelSpec(name), 10 * MIB))
            bench.measurements.loaded(name, 1.0, 100 * MIB)
        server = bench.put(*"abc")
        for replica in server.replicas.values():
            replica.last_used_s = 1.0
        return bench, server

    def measure_memory(self, bench: Bench, server: Server, held: int) -> list[int]:
        bench.measurements.memory_measured("s0", held * MIB)
        for replica in server.replicas.values():
            replica.bytes = bench.fleet.models[replica.model].resident_bytes
            known = bench.measurements.known[replica.model].resident_bytes
            assert known == replica.bytes
        assert server.held_bytes >= held * MIB - 3
        return [round(bench.fleet.models[name].resident_bytes / MIB) for name in "abc"]

    def test_that_one_of_many_made_for_all_are_taken_back_when_it_holds_less(self) -> None:
        bench, server = self.bench()
        assert self.measure_memory(bench, server, 900) == [300, 300, 300]
        bench.measurements.loaded("b", 1.0, 100 * MIB)
        assert self.measure_memory(bench, server, 880) == [300, 300, 300]  # it may go up and down so far by itself
        assert self.measure_memory(bench, server, 600) == [200, 200, 200]
        assert self.measure_memory(bench, server, 200) == [100, 100, 100]  # never to less than a load has shown

    def test_are_not_those_that_a_load_in_kept_memory_does_not_show(self) -> None:
        bench, server = self.bench()
        bench.measurements.loaded("b", 1.0, 5 * MIB)
        assert self.measure_memory(bench, server, 150) == [100, 100, 100]

    @pytest.mark.parametrize("case", ["not used since its load", "elsewhere too", "of before this process", "declared"])
    def test_stay_while_it_is_not_certain_that_they_are(self, case: str) -> None:
        bench, server = self.bench()
        self.measure_memory(bench, server, 900)
        if case == "not used since its load":
            server.replicas["a"].since_s = 2.0
        elif case == "elsewhere too":
            other = Server("s1", 1000 * MIB)
            bench.fleet.add_server(other)
            bench.fleet.put_replica(other, Replica("a", READY, 300 * MIB, 0.0))
        elif case == "declared":
            bench.fleet.models["a"].spec = ModelSpec("a", 300 * MIB)
        else:
            for file_bytes in (10 * MIB, 11 * MIB):
                bench.describe(DescribedModel(ModelSpec("a"), file_bytes))
            bench.measurements.recall("a", Measured(11 * MIB, 300 * MIB))
            bench.fleet.models["a"].resident_bytes = 300 * MIB
        assert self.measure_memory(bench, server, 300) == [300, 100, 100]
