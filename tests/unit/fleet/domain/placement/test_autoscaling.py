from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica
from control_plane.fleet.domain.placement.autoscaling import AutoscalingLimits, desired_replicas, pool_to_grow, replica_to_remove
from tests.unit.fleet.domain.fleets import NOW_S, fleets, model, server

LIMITS = AutoscalingLimits(grow_above=0.7, target=0.5, shrink_below=0.35, keep_s=60.0)


def fleet_of(replicas: int, *, servers: int = 8, busy: float = 0.0, lasting: float | None = None) -> Fleet:
    """Make a fleet with `replicas` replicas of `m`, whose requests keep `busy` servers busy now and `lasting`
    over the last quarter of an hour."""
    fleet = Fleet()
    facts = model(fleet, "m", uses_per_s=100.0 * busy, idle_s=0.0)
    facts.rate_slow = 100.0 * (busy if lasting is None else lasting)
    for number in range(servers):
        server(fleet, f"s{number}", *(["m"] if number < replicas else []))
    return fleet


def facts_of(fleet: Fleet) -> ModelFacts:
    return fleet.models["m"]


def wanted(fleet: Fleet) -> int:
    return desired_replicas(facts_of(fleet), fleet, NOW_S, limits=LIMITS)


@pytest.mark.parametrize(
    ("replicas", "busy", "expected"),
    [
        pytest.param(0, 0.0, 0, id="nobody wants it"),
        pytest.param(0, 3.0, 0, id="its first replica is for whoever asks"),
        pytest.param(1, 0.0, 1, id="its last replica costs nothing"),
        pytest.param(1, 0.69, 1, id="busy"),
        pytest.param(1, 0.71, 2, id="too busy"),
        pytest.param(1, 2.2, 5, id="a spike, at once"),
        pytest.param(1, 100.0, 8, id="no more than there are servers"),
        pytest.param(2, 1.39, 2, id="two, busy"),
        pytest.param(2, 0.36, 2, id="two, and one might do"),
        pytest.param(2, 0.34, 1, id="two, and one would do"),
        pytest.param(5, 0.1, 4, id="one after the other"),
    ],
)
def test_how_many(replicas: int, busy: float, expected: int) -> None:
    assert wanted(fleet_of(replicas, busy=busy)) == expected


def test_a_server_that_does_several_at_a_time_is_worth_more() -> None:
    fleet = fleet_of(1, busy=2.0)
    fleet.servers["s0"].parallel = 4
    assert wanted(fleet) == 1


def test_what_was_in_demand_a_while_ago_does_not_shrink_yet() -> None:
    assert wanted(fleet_of(3, busy=0.1, lasting=0.8)) == 3


def test_nothing_shrinks_while_a_replica_is_new() -> None:
    fleet = fleet_of(3)
    fleet.servers["s1"].replicas["m"].since_s = NOW_S - 59.0
    assert wanted(fleet) == 3
    fleet.servers["s1"].replicas["m"].since_s = NOW_S - 60.0
    assert wanted(fleet) == 2
    fleet.servers["s1"].replicas["m"].state = ModelState.LOADING
    assert wanted(fleet) == 3


def test_replicas_that_leave_or_are_on_servers_that_are_down_do_not_count() -> None:
    fleet = fleet_of(3)
    fleet.servers["s0"].replicas["m"].state = ModelState.UNLOADING
    fleet.servers["s1"].is_up = False
    assert wanted(fleet) == 1
    fleet.servers["s2"].is_draining = True
    assert wanted(fleet) == 0


@pytest.mark.parametrize(
    ("least", "most", "busy", "expected"),
    [
        pytest.param(2, None, 0.0, 2, id="at least"),
        pytest.param(0, 3, 10.0, 3, id="at most"),
        pytest.param(20, None, 0.0, 8, id="more than there are servers"),
    ],
)
def test_what_its_spec_says(least: int, most: int | None, busy: float, expected: int) -> None:
    fleet = fleet_of(1, busy=busy)
    facts_of(fleet).spec = replace(facts_of(fleet).spec, min_replicas=least, max_replicas=most)
    assert wanted(fleet) == expected


def test_no_more_than_there_are_servers_that_it_may_be_on() -> None:
    fleet = fleet_of(1, busy=10.0)
    facts_of(fleet).spec = replace(facts_of(fleet).spec, server_labels={"gpu": "h200"})
    for number in (0, 1, 2):
        fleet.servers[f"s{number}"].labels = {"gpu": "h200"}
    assert wanted(fleet) == 3
    fleet.servers["s2"].is_draining = True
    assert wanted(fleet) == 2


# In pools


def pooled(*pools: str, replicas: int, busy: float = 0.0) -> Fleet:
    fleet = fleet_of(replicas, servers=len(pools), busy=busy)
    for at, pool in zip(list(fleet.servers.values()), pools, strict=True):
        at.pool = pool
    return fleet


@pytest.mark.parametrize(
    ("pools", "replicas", "expected"),
    [
        pytest.param("ssll", 1, 2, id="no more than its pool has servers"),
        pytest.param("slsl", 2, 4, id="than its two pools have"),
        pytest.param("s*l", 1, 2, id="with servers that are for whatever comes"),
        pytest.param("*sl", 1, 1, id="or those alone"),
    ],
)
def test_by_demand_it_stays_in_its_pools(pools: str, replicas: int, expected: int) -> None:
    fleet = pooled(*(pool.strip("*") for pool in pools), replicas=replicas, busy=10.0)
    assert wanted(fleet) == expected
    facts_of(fleet).spec = replace(facts_of(fleet).spec, min_replicas=3)
    assert wanted(fleet) == max(3, expected), "what its spec asks for may be anywhere"


def test_it_grows_where_it_is_busiest() -> None:
    fleet = pooled("short", "long", "long", replicas=2)
    fleet.servers["s1"].work_s = 1.0
    assert pool_to_grow(facts_of(fleet), fleet) == "long"
    fleet.servers["s0"].replicas["m"].in_flight = 1
    assert pool_to_grow(facts_of(fleet), fleet) == "short"
    facts_of(fleet).spec = replace(facts_of(fleet).spec, min_replicas=3)
    assert pool_to_grow(facts_of(fleet), fleet) is None
    assert pool_to_grow(facts_of(fleet), fleet_of(0)) is None


def test_the_last_replica_of_a_pool_stays() -> None:
    fleet = pooled("short", "short", "long", replicas=3)
    fleet.servers["s2"].work_s = 1.0
    assert (wanted(fleet), replica_to_remove(facts_of(fleet), fleet, NOW_S)) == (2, "s0")
    fleet.drop_replica(fleet.servers["s0"], "m")
    assert (wanted(fleet), replica_to_remove(facts_of(fleet), fleet, NOW_S)) == (2, None)
    facts_of(fleet).spec = replace(facts_of(fleet).spec, max_replicas=1)
    assert (wanted(fleet), replica_to_remove(facts_of(fleet), fleet, NOW_S)) == (1, "s2")


# With a latency objective; services take 10 ms


@pytest.mark.parametrize(
    ("replicas", "busy", "objective_ms", "expected"),
    [
        pytest.param(1, 0.20, 50, 1, id="busy, and fast enough"),
        pytest.param(1, 0.30, 50, 2, id="busy, and its requests wait for each other too long"),
        pytest.param(1, 1.90, 20, 5, id="as many as it takes, at once"),
        pytest.param(2, 0.42, 50, 2, id="two are enough"),
        pytest.param(1, 0.29, 11, 2, id="not less busy than a tenth: the wait is no more for each other"),
        pytest.param(1, 0.60, 10, 1, id="an objective that no number of replicas could reach"),
        pytest.param(1, 0.80, 1000, 2, id="an objective that is easily reached: by demand"),
        pytest.param(1, 30.0, 50, 8, id="no more than there are servers"),
        pytest.param(2, 0.15, 50, 1, id="one would be fast enough"),
        pytest.param(2, 0.20, 50, 2, id="one would, but barely"),
    ],
)
def test_objectives(replicas: int, busy: float, objective_ms: float, expected: int) -> None:
    fleet = fleet_of(replicas, busy=busy)
    facts_of(fleet).spec = replace(facts_of(fleet).spec, latency_objective_s=objective_ms / 1000)
    assert wanted(fleet) == expected


@given(st.floats(0, 20), st.integers(1, 12), st.floats(0.001, 1.0))
def test_with_an_objective_too_steady_demand_leads_to_a_number_that_stays(busy: float, replicas: int, objective_s: float) -> None:
    fleet = fleet_of(replicas, servers=250, busy=busy)
    facts_of(fleet).spec = replace(facts_of(fleet).spec, latency_objective_s=objective_s)
    numbers = settled(fleet, 30)
    assert numbers[-15:] == [numbers[-1]] * 15
    assert numbers in (sorted(numbers), sorted(numbers, reverse=True))


def settled(fleet: Fleet, ticks: int) -> list[int]:
    """Return how many replicas are wanted at each tick, each time after giving the fleet as many."""
    numbers = []
    for _ in range(ticks):
        numbers.append(wanted(fleet))
        for number, at in enumerate(fleet.servers.values()):
            if number < numbers[-1]:
                fleet.put_replica(at, Replica("m", ModelState.READY, 1, NOW_S - 500.0))
            else:
                fleet.drop_replica(at, "m")
    return numbers


@given(st.floats(0, 20), st.integers(1, 12))
def test_steady_demand_leads_to_a_number_that_stays(busy: float, replicas: int) -> None:
    fleet = fleet_of(replicas, servers=50, busy=busy)
    numbers = settled(fleet, 60)
    assert numbers[-20:] == [numbers[-1]] * 20
    assert busy <= 0.7 * numbers[-1] + 1e-9
    assert numbers in (sorted(numbers), sorted(numbers, reverse=True))


@given(fleets())
def test_it_is_within_what_is_possible(fleet: Fleet) -> None:
    up = sum(server.is_up for server in fleet.servers.values())
    for facts in fleet.models.values():
        number = desired_replicas(facts, fleet, NOW_S)
        most = up if facts.spec.max_replicas is None else min(up, facts.spec.max_replicas)
        assert min(facts.spec.min_replicas, most) <= number <= most


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        pytest.param({}, "s0", id="of equals the first"),
        pytest.param({"s1": {"work_s": 1.0}}, "s1", id="that has the most to do"),
        pytest.param({"s1": {"budget_bytes": 1}, "s2": {"work_s": 1.0}}, "s1", id="that has the least memory"),
        pytest.param({"s1": {"budget_bytes": 1}, "s2": {"is_ejected": True}}, "s2", id="that is ejected"),
    ],
)
def test_which_goes(prepare: dict[str, dict[str, object]], expected: str) -> None:
    fleet = fleet_of(3)
    for name, fields in prepare.items():
        for field, value in fields.items():
            setattr(fleet.servers[name], field, value)
    assert replica_to_remove(facts_of(fleet), fleet, NOW_S) == expected


def test_none_goes_that_is_in_use_or_new() -> None:
    fleet = fleet_of(5)
    replicas = [fleet.servers[f"s{number}"].replicas["m"] for number in range(5)]
    replicas[0].in_flight = 1
    replicas[1].sequences = 1
    replicas[2].since_s = NOW_S - 1.0
    replicas[3].is_step = True
    assert replica_to_remove(facts_of(fleet), fleet, NOW_S, limits=LIMITS) == "s4"
    replicas[4].state = ModelState.LOADING
    assert replica_to_remove(facts_of(fleet), fleet, NOW_S, limits=LIMITS) is None
