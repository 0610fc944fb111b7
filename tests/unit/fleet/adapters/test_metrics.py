from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from control_plane.core.model import ModelState
from control_plane.fleet.adapters.metrics import FleetMetrics
from control_plane.fleet.adapters.move_log import MoveLog
from control_plane.fleet.domain.counts import LOADING, FleetCounts, Hedge
from control_plane.fleet.domain.event import FleetEvent, FleetEventKind
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica, Server
from control_plane.fleet.view.state import NO_BUDGET
from control_plane.models.domain.description import ModelSpec, Tier
from control_plane.telemetry.request_counts import (
    OTHER,
    ComputedCount,
    FleetRefusalCount,
    HedgeCount,
    RequestCounts,
    ShedCount,
    WaitHistogram,
)
from control_plane.telemetry.shed_reason import ShedReason

READY, LOADS, UNLOADS = ModelState.READY, ModelState.LOADING, ModelState.UNLOADING
NOW_S = 100.0


class Bench:
    """A fleet of `s0` with model a ready and b loading, and of `s1`, which is down; model c is warm and d
    cold."""

    def __init__(self) -> None:
        self.fleet, self.counts, self.is_leader = Fleet(), FleetCounts(), False
        for server in (Server("s0", 1000, is_draining=True), Server("s1", NO_BUDGET, is_up=False, is_ejected=True)):
            self.fleet.add_server(server)
        for name, tier in (("a", Tier.WARM), ("b", Tier.WARM), ("c", Tier.WARM), ("d", Tier.COLD)):
            self.fleet.models[name] = ModelFacts(ModelSpec(name), 40, load_s=1.0, service_s=0.1, tier=tier)
        for name, state in (("a", READY), ("b", LOADS)):
            self.fleet.put_replica(self.fleet.servers["s0"], Replica(name, state, 40, 0.0))
        self.requests = RequestCounts()
        self.metrics = FleetMetrics(
            self.counts, lambda: self.requests, fleet=self.fleet, is_leader=lambda: self.is_leader, now_s=lambda: NOW_S
        )

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """Values by labels, in the order of their names; without `tidegate_fleet_`."""
        return samples(self.metrics, name)


def page(metrics: FleetMetrics) -> str:
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


def samples(metrics: FleetMetrics, name: str) -> dict[tuple[str, ...], float]:
    """Return a metric's values by its labels, in the order of their names; names are given without
    `tidegate_fleet_`."""
    families = text_string_to_metric_families(page(metrics))
    found = [sample for family in families for sample in family.samples if sample.name == f"tidegate_fleet_{name}"]
    return {tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in found}


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("server_up", {("s0",): 1.0, ("s1",): 0.0}),
        ("server_ejected", {("s0",): 0.0, ("s1",): 1.0}),
        ("server_leaving", {("s0",): 1.0, ("s1",): 0.0}),
        ("server_budget_bytes", {("s0",): 1000.0}),
        ("server_held_bytes", {("s0",): 80.0, ("s1",): 0.0}),
        ("models", {("hot",): 1.0, ("warm",): 2.0, ("cold",): 1.0}),
        (
            "replicas",
            {
                ("s0", "READY"): 1.0,
                ("s0", "LOADING"): 1.0,
                ("s0", "UNLOADING"): 0.0,
                ("s1", "READY"): 0.0,
                ("s1", "LOADING"): 0.0,
                ("s1", "UNLOADING"): 0.0,
            },
        ),
    ],
)
def test_the_picture_as_it_is(bench: Bench, name: str, values: dict[tuple[str, ...], float]) -> None:
    assert bench.samples(name) == values


def test_what_changes_is_seen_at_the_next_look(bench: Bench) -> None:
    assert (bench.samples("quarantined_models"), bench.samples("leader")) == ({(): 0.0}, {(): 0.0})
    bench.is_leader = True
    bench.fleet.models["c"].quarantined_until_s = NOW_S + 1
    bench.fleet.models["d"].quarantined_until_s = NOW_S - 1
    bench.fleet.remove_server("s0")
    assert (bench.samples("quarantined_models"), bench.samples("leader")) == ({(): 1.0}, {(): 1.0})
    assert bench.samples("models") == {("hot",): 0.0, ("warm",): 3.0, ("cold",): 1.0}
    assert list(bench.samples("server_up")) == [("s1",)]


def test_events_of_every_kind_are_there_from_the_start(bench: Bench) -> None:
    assert bench.samples("events_total") == {(kind.value,): 0.0 for kind in FleetEventKind}
    for seconds in (0.2, 3.0):
        bench.counts.count_event(FleetEvent(1e9, FleetEventKind.LOADED, "a", "s0", "", seconds))
    assert bench.samples("events_total")["loaded",] == 2.0
    buckets = bench.samples("load_duration_seconds_bucket")
    assert (buckets["0.1",], buckets["0.25",], buckets["2.0",], buckets["4.0",], buckets["+Inf",]) == (0.0, 1.0, 1.0, 2.0, 2.0)
    assert bench.samples("load_duration_seconds_sum") == {(): pytest.approx(3.2)}


def test_requests_that_waited_and_that_were_refused(bench: Bench) -> None:
    assert bench.samples("wait_duration_seconds_count") == {(): 0.0}
    waited = WaitHistogram((0, 2, *[0] * 10, 1), 301.5)
    bench.requests = RequestCounts(refused=(FleetRefusalCount(LOADING, 2), FleetRefusalCount("in_use", 1)), waited=waited)
    assert bench.samples("wait_duration_seconds_count") == {(): 3.0}
    assert bench.samples("wait_duration_seconds_sum") == {(): 301.5}
    assert bench.samples("wait_duration_seconds_bucket")["0.25",] == 2.0
    assert bench.samples("requests_refused_total") == {("loading",): 2.0, ("in_use",): 1.0}


def test_requests_that_were_hedged(bench: Bench) -> None:
    assert bench.samples("hedges_total") == {(each.value,): 0.0 for each in Hedge}
    bench.requests = RequestCounts(hedges=(HedgeCount("won", 2), HedgeCount("lost", 1)), hedged_units=7.5)
    assert {key: value for key, value in bench.samples("hedges_total").items() if value} == {("won",): 2.0, ("lost",): 1.0}
    assert bench.samples("hedged_compute_units_total") == {(): 7.5}


def test_moves_by_way(bench: Bench) -> None:
    bench.counts.moved("a", source=Tier.WARM, target=Tier.HOT, size_bytes=40, took_s=0.5)
    bench.counts.move_failed("d", source=Tier.COLD, target=Tier.WARM)
    found = [bench.samples(f"{name}_total") for name in ("moves", "moved_bytes", "move_seconds", "move_failures")]
    ways = [("warm", "hot"), ("cold", "warm")]
    assert found == [dict(zip(ways, values, strict=True)) for values in ((1.0, 0.0), (40.0, 0.0), (0.5, 0.0), (0.0, 1.0))]


def test_no_label_grows_with_the_models(bench: Bench) -> None:
    before = page(bench.metrics).count("\n")
    for number in range(1000):
        name = f"more-{number}"
        bench.fleet.models[name] = ModelFacts(ModelSpec(name), 40, load_s=1.0, service_s=0.1)
        bench.counts.count_event(FleetEvent(1e9, FleetEventKind.EVICTED, name, f"gone-{number}", f"for '{name}'"))
        bench.counts.moved(name, source=Tier.HOT, target=Tier.WARM, size_bytes=1, took_s=0.1)
    assert page(bench.metrics).count("\n") <= before + 4


def test_of_one_triton_it_is_told_how_often_it_was_lost_and_of_moves_if_there_were_any() -> None:
    counts = FleetCounts()
    samples_of_one = [line for line in page(FleetMetrics(counts, losses=lambda: 3)).splitlines() if not line.startswith("#")]
    assert samples_of_one == ["tidegate_triton_losses_total 3.0"]
    MoveLog(counts).moved("m", source=Tier.COLD, target=Tier.WARM, size_bytes=7, took_s=0.1)
    assert samples(FleetMetrics(counts), "moved_bytes_total") == {("cold", "warm"): 7.0}
    assert "tidegate_fleet_server" not in page(FleetMetrics(counts))


def test_moves_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    counts = FleetCounts()
    log = MoveLog(counts)
    with caplog.at_level(logging.INFO):
        log.moved("m", source=Tier.WARM, target=Tier.COLD, size_bytes=3 * 2**20, took_s=1.234)
        log.move_failed("m", source=Tier.COLD, target=Tier.WARM)
    (record,) = caplog.records
    assert (record.getMessage(), record.model, record.mib, record.seconds) == ("a model moved from warm to cold", "m", 3.0, 1.23)  # type: ignore[attr-defined]
    assert (counts.moves[Tier.WARM, Tier.COLD].count, counts.moves[Tier.COLD, Tier.WARM].failed) == (1, 1)


def test_what_an_autoscaler_needs(bench: Bench) -> None:
    assert bench.samples("offered_seconds_total") == {("",): 0.0}, "never an empty answer"
    bench.fleet.servers["s0"].work_s, bench.fleet.servers["s0"].loads_until_s = 2.5, NOW_S + 4
    bench.requests = RequestCounts(
        computed=(ComputedCount("a", 30),),
        shed=(ShedCount("t", ShedReason.QUEUE_FULL, 20), ShedCount("t", ShedReason.DEADLINE, 10), ShedCount("t", ShedReason.QUOTA, 500)),
    )
    # 30 that were computed and 30 that were shed for want of servers, of 0.1 s each.
    assert bench.samples("offered_seconds_total") == {("",): pytest.approx(6.0)}
    assert bench.samples("offered_seconds_total") == {("",): pytest.approx(6.0)}, "whoever asks, and how often"
    assert bench.samples("pending_seconds") == {("",): 2.5}
    assert bench.samples("loading_seconds") == {("",): 4.0}
    assert bench.samples("pool_servers") == {("",): 0.0}, "one is drained and the other down"


def test_an_autoscaler_sees_the_work_of_models_beyond_those_that_have_metrics_of_their_own(bench: Bench) -> None:
    bench.requests = RequestCounts(computed=(ComputedCount("a", 10), ComputedCount(OTHER, 90)))
    assert bench.samples("offered_seconds_total") == {("",): pytest.approx(10.0)}


def test_a_model_counts_once_by_its_nearest_tier_however_many_replicas_and_one_that_is_not_described_does_not() -> None:
    bench = Bench()
    fleet = bench.fleet
    for name, server, state in (("a", "s1", READY), ("c", "s0", UNLOADS), ("d", "s1", READY), ("somebody's own", "s0", READY)):
        fleet.put_replica(fleet.servers[server], Replica(name, state, 40, 0.0))
    counted = {tier: float(sum(fleet.nearest_tier(facts) is tier for facts in fleet.models.values())) for tier in Tier}
    assert counted == {Tier.HOT: 2.0, Tier.WARM: 2.0, Tier.COLD: 0.0}
    assert bench.samples("models") == {(tier.value,): count for tier, count in counted.items()}
