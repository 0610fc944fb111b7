"""Production's policies in a simulated fleet: the same each time, within memory, and as good as they are
meant to be.
"""

from __future__ import annotations

from random import Random

import pytest

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica, Server
from control_plane.fleet.simulation.engine import simulate
from control_plane.fleet.simulation.generators import drifting, model_names, poisson
from control_plane.fleet.simulation.production_router import ProductionRouter
from control_plane.fleet.simulation.router import LoadReplica, RefuseRequest, SendRequest, UnloadReplica
from control_plane.fleet.simulation.workload import FleetShape, Joins, Leaves, ModelCost, Request, Workload
from control_plane.models.domain.description import ModelSpec

SLOT = 100


def drift(requests: int = 3000) -> Workload:
    models = drifting(Random(5), model_names(30), requests, 1.1)
    return Workload(poisson(Random(6), models, 160.0, 0.010), {name: ModelCost(SLOT, 0.050) for name in set(models)})


def test_one_model_is_loaded_once_and_serves() -> None:
    outcome = simulate(
        Workload(poisson(Random(1), ["a"] * 100, 1.0, 0.010), {"a": ModelCost(SLOT, 0.050)}),
        FleetShape(3, SLOT),
        ProductionRouter(Random(1)),
    )
    assert (outcome.answered, outcome.loads, outcome.evictions) == (100, 1, 0)


def test_it_is_the_same_each_time() -> None:
    def run(seed: int) -> tuple[object, ...]:
        outcome = simulate(drift(), FleetShape(4, 5 * SLOT), ProductionRouter(Random(seed)))
        return outcome.loads, outcome.quantile_s(0.5), outcome.quantile_s(0.99)

    assert run(1) == run(1)


def test_a_drifting_trace_in_half_the_memory_it_needs() -> None:
    outcome = simulate(drift(), FleetShape(4, 4 * SLOT), ProductionRouter(Random(1)))
    assert (outcome.answered, outcome.refused) == (3000, 0)
    assert outcome.max_held_bytes == 4 * SLOT
    assert outcome.loads < 1500
    assert outcome.part_within(0.1) > 0.95


def test_servers_that_come_and_go() -> None:
    changes = [Leaves(5.0, "server-0"), Joins(8.0, "server-0"), Leaves(9.0, "server-1"), Leaves(9.5, "server-2"), Joins(12.0, "server-2")]
    outcome = simulate(drift(), FleetShape(4, 5 * SLOT, changes=changes), ProductionRouter(Random(1)))
    assert outcome.answered == 3000
    assert outcome.max_held_bytes <= 5 * SLOT


def test_what_was_no_use_beside_a_replica_is_asked_again_when_that_is_gone() -> None:
    there, ours, request = fleet("0"), ProductionRouter(Random(1)), Request(10.0, "a", 0.01)
    there.servers["0"].work_s = 0.06
    for other in ("1", "2"):
        there.put_replica(there.servers[other], Replica("b", ModelState.READY, SLOT, 0.0, in_flight=1))
    assert ours.choose(request, there, 10.0) == SendRequest("0"), "there is no room elsewhere"
    there.remove_server("0")
    assert isinstance(ours.choose(request, there, 10.0), RefuseRequest)
    there.drop_replica(there.servers["2"], "b")
    assert ours.choose(request, there, 10.0) == SendRequest("2")


@pytest.mark.parametrize(
    ("objective_s", "loads", "is_met"),
    [
        pytest.param(None, 1, False, id="none: one replica is busy, but not too busy"),
        pytest.param(0.030, 2, True, id="two replicas keep to it"),
        pytest.param(0.005, 1, False, id="one that no number of replicas could keep to"),
    ],
)
def test_a_latency_objective(objective_s: float | None, loads: int, is_met: bool) -> None:
    """Requests of 10 ms keep half a server busy, in a fleet with room; a load takes too long to serve the
    request that asks for it sooner."""
    busy = Workload(poisson(Random(1), ["a"] * 6000, 50.0, 0.010), {"a": ModelCost(SLOT, 2.0, latency_objective_s=objective_s)})
    outcome = simulate(busy, FleetShape(4, SLOT, deadline_s=60.0), ProductionRouter(Random(1)))
    assert (outcome.loads, outcome.answered) == (loads, 6000)
    # Some 150 of them come while nothing is loaded yet.
    assert (outcome.part_within(0.030) > 0.96) is is_met, outcome.part_within(0.030)


def fleet(*ready_on: str, min_replicas: int = 0) -> Fleet:
    """Make three servers, and a model of one slot that has long been ready on some of them."""
    made = Fleet(models={"a": ModelFacts(ModelSpec("a", min_replicas=min_replicas), SLOT, 0.05, 0.01)})
    for name in ("0", "1", "2"):
        made.add_server(Server(name, SLOT))
    for name in ready_on:
        made.put_replica(made.servers[name], Replica("a", ModelState.READY, SLOT, 0.0))
    return made


@pytest.mark.parametrize(
    ("there", "changes"),
    [
        pytest.param(fleet(), [], id="none wanted"),
        pytest.param(fleet(min_replicas=1), [LoadReplica], id="one wanted"),
        pytest.param(fleet("1", min_replicas=2), [LoadReplica], id="one more wanted"),
        pytest.param(fleet("1", min_replicas=1), [], id="as many as wanted"),
        pytest.param(fleet("0", "1"), [UnloadReplica], id="long unused"),
    ],
)
def test_replicas_follow_what_is_wanted(there: Fleet, changes: list[type]) -> None:
    found = list(ProductionRouter(Random(1)).tick(there, 10_000.0))
    assert [type(change) for change in found] == changes
    for change in found:
        assert ("a" in there.servers[change.server].replicas) == isinstance(change, UnloadReplica)


def test_when_it_was_first_turned_away_is_remembered() -> None:
    there, ours = fleet(), ProductionRouter(Random(1))
    there.models["a"].resident_bytes = 2 * SLOT
    for now_s in (7.0, 8.0):
        assert isinstance(ours.choose(Request(now_s, "a", 0.01), there, now_s), RefuseRequest)
    assert there.models["a"].refused_since_s == 7.0


def test_a_model_that_fits_nowhere_is_refused() -> None:
    outcome = simulate(
        Workload(poisson(Random(1), ["a", "b"] * 10, 1.0, 0.010), {"a": ModelCost(SLOT, 0.05), "b": ModelCost(3 * SLOT, 0.05)}),
        FleetShape(2, 2 * SLOT, deadline_s=1.0),
        ProductionRouter(Random(1)),
    )
    assert (outcome.answered, outcome.refused) == (10, 10)
