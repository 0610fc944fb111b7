from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet
from control_plane.fleet.domain.placement.placement import Placement, Refusal, place
from control_plane.fleet.domain.routing.routing import Choice, RoutingLimits, choose, has_other
from tests.unit.fleet.domain.fleets import NOW_S, fleets, model, server

SERVICE_S = 0.01
LIMITS = RoutingLimits(equal_within_services=0.5, sample_size=6)

draws = st.floats(0, 1, exclude_max=True)


def fleet_of(**work_s: float) -> Fleet:
    """Make servers with a replica of `m` each, which takes a second to load."""
    fleet = Fleet()
    for name, work in work_s.items():
        server(fleet, name, "m", work_s=work)
    return fleet


def chosen(fleet: Fleet, *, draw: float = 0.0, pool: str | None = None, affinity_key: int | None = None) -> Choice:
    return choose(fleet, "m", NOW_S, draw, pool=pool, affinity_key=affinity_key, limits=LIMITS)


def counted(fleet: Fleet, choices: int = 600, affinity_key: int | None = None) -> Counter[str | None]:
    random = Random(1)
    return Counter(chosen(fleet, draw=random.random(), affinity_key=affinity_key).server for _ in range(choices))


def counted_in(fleet: Fleet, pool: str) -> Counter[str | None]:
    random = Random(1)
    return Counter(chosen(fleet, draw=random.random(), pool=pool).server for _ in range(100))


MISS = Choice(None, inf, needs_placement=True)


@pytest.mark.parametrize(
    ("work_s", "expected"),
    [
        pytest.param({}, MISS, id="no replica"),
        pytest.param({"a": 0.0}, Choice("a", SERVICE_S, needs_placement=False), id="one replica"),
        pytest.param({"a": 0.99}, Choice("a", 1.0, needs_placement=False), id="one replica, busy, but a load takes longer"),
        pytest.param({"a": 1.01}, Choice("a", 1.02, needs_placement=True), id="one replica, busier than a load takes"),
        pytest.param({"a": 0.3, "b": 0.1}, Choice("b", 0.11, needs_placement=False), id="the less busy of two"),
        pytest.param({"a": 3.0, "b": 2.0}, Choice("b", 2.01, needs_placement=True), id="both busy"),
    ],
)
def test_where_it_goes(work_s: dict[str, float], expected: Choice) -> None:
    fleet = fleet_of(**work_s)
    model(fleet, "m")
    found = chosen(fleet)
    assert replace(found, expected_s=pytest.approx(found.expected_s)) == expected


def test_a_model_that_nobody_knows_is_a_miss() -> None:
    assert chosen(Fleet()) == MISS


def test_servers_that_do_several_at_a_time_are_done_sooner() -> None:
    fleet = fleet_of(a=0.3, b=0.4)
    fleet.servers["b"].parallel = 4
    assert chosen(fleet).server == "b"


def test_a_replica_that_loads_counts_with_what_is_left_and_who_waits() -> None:
    fleet = fleet_of(a=0.0)
    replica = fleet.servers["a"].replicas["m"]
    replica.state, replica.ready_s, replica.in_flight = ModelState.LOADING, NOW_S + 0.4, 7
    assert chosen(fleet).expected_s == pytest.approx(0.4 + 0.07 + SERVICE_S)
    fleet.servers["a"].serves_while_loading, fleet.servers["a"].work_s = False, 0.5
    assert chosen(fleet).expected_s == pytest.approx(0.5 + SERVICE_S)


@pytest.mark.parametrize("count", [1, 3])
def test_a_replica_that_cannot_serve_is_none(count: int) -> None:
    fleet = fleet_of(**{f"s{number}": 0.0 for number in range(count)})
    for at in fleet.servers.values():
        at.replicas["m"].state = ModelState.UNLOADING
    assert chosen(fleet) == MISS
    for at in fleet.servers.values():
        at.replicas["m"].state, at.is_up = ModelState.READY, False
    assert chosen(fleet) == MISS


# Among equals


def test_equal_replicas_share_the_requests() -> None:
    counts = counted(fleet_of(a=0.1, b=0.1, c=0.104, d=0.2))
    assert counts.keys() == {"a", "b", "c"}
    assert min(counts.values()) > 150


def test_of_many_replicas_each_gets_some() -> None:
    fleet = fleet_of(**{f"s{number}": 0.0 for number in range(40)})
    assert len(counted(fleet)) == 40


def test_of_many_replicas_the_busy_ones_get_few() -> None:
    fleet = fleet_of(**{f"s{number}": 0.0 if number % 2 else 0.5 for number in range(40)})
    assert sum(count for name, count in counted(fleet).items() if fleet.servers[str(name)].work_s) < 60


def test_requests_that_are_alike_go_to_one_of_equal_replicas_and_others_elsewhere() -> None:
    fleet = fleet_of(a=0.1, b=0.1, c=0.104, d=0.2)
    where = [counted(fleet, 20, affinity_key=affinity_key) for affinity_key in range(200)]
    assert all(len(each) == 1 for each in where)
    assert {name for each in where for name in each} == {"a", "b", "c"}


def test_requests_that_are_alike_do_not_wait_for_each_other() -> None:
    fleet = fleet_of(a=0.0, b=0.0)
    first = chosen(fleet, affinity_key=7).server
    assert first is not None
    fleet.servers[first].work_s += SERVICE_S
    assert chosen(fleet, affinity_key=7).server != first


def test_requests_that_are_alike_stay_together_in_a_large_fleet() -> None:
    fleet = fleet_of(**{f"s{number}": 0.0 for number in range(40)})
    assert len(counted(fleet, 50, affinity_key=123456789)) == 1


def test_in_a_large_fleet_requests_that_are_alike_leave_where_they_meet_for_a_server_that_is_idle() -> None:
    fleet = fleet_of(**{f"s{number}": 0.0 for number in range(40)})
    (meeting,) = counted(fleet, 20, affinity_key=5)
    for at in fleet.servers.values():
        at.work_s = 0.0 if at.name in ("s3", "s33") else 0.1
    found = counted(fleet, 200, affinity_key=5)
    assert 0 < found["s3"] + found["s33"] < 200
    assert found[meeting] > 50


def test_in_a_large_fleet_requests_that_are_alike_can_use_all_of_it() -> None:
    fleet = fleet_of(**{f"s{number}": 0.0 for number in range(40)})
    random = Random(1)
    for _ in range(400):
        name = chosen(fleet, draw=random.random(), affinity_key=5).server
        assert name is not None
        fleet.servers[name].work_s += SERVICE_S
    loads = [at.work_s for at in fleet.servers.values()]
    assert min(loads) > 0
    assert max(loads) < 3 * sum(loads) / len(loads)


# Servers that leave


def test_a_server_that_leaves_gets_nothing_new() -> None:
    fleet = fleet_of(a=0.0, b=5.0)
    fleet.servers["a"].is_draining = True
    assert counted(fleet).keys() == {"b"}
    fleet.servers["b"].is_draining = True
    assert chosen(fleet) == MISS
    fleet.servers["a"].is_ejected, fleet.servers["a"].probe_from_s = True, NOW_S
    assert chosen(fleet) == MISS


# Objectives


@pytest.mark.parametrize(("work_s", "asks"), [(0.03, False), (0.05, True)])
@pytest.mark.parametrize("servers", [["a"], ["a", "b"]])
def test_what_takes_longer_than_it_should_asks_for_another_replica(servers: list[str], work_s: float, asks: bool) -> None:
    fleet = fleet_of(**dict.fromkeys(servers, work_s))
    fleet.models["m"].spec = replace(fleet.models["m"].spec, latency_objective_s=0.05)
    assert chosen(fleet).needs_placement is asks


@pytest.mark.parametrize("objective_s", [SERVICE_S, SERVICE_S / 2])
def test_nobody_asks_for_the_sake_of_an_objective_that_no_replica_could_reach(objective_s: float) -> None:
    fleet = fleet_of(a=0.05)
    fleet.models["m"].spec = replace(fleet.models["m"].spec, latency_objective_s=objective_s)
    assert not chosen(fleet).needs_placement
    fleet.servers["a"].work_s = 1.01
    assert chosen(fleet).needs_placement, "as without one"


# Pools


def test_another_pool_counts_as_further_than_a_load() -> None:
    fleet = fleet_of(a=0.0, b=0.5, c=1.5)
    for name, pool in {"a": "long", "b": "short", "c": "long"}.items():
        fleet.servers[name].pool = pool
    assert chosen(fleet, pool="short").server == "b"
    fleet.servers["b"].work_s = 3.0
    assert chosen(fleet, pool="short") == Choice("a", 2.0 + SERVICE_S, needs_placement=True)


@pytest.mark.parametrize("service_s", [0.01, 0.3, 2.0])
def test_where_only_another_pool_has_it_a_load_is_sooner_unless_a_model_goes_that_is_soon_loaded_again(service_s: float) -> None:
    fleet = fleet_of(a=0.0)
    fleet.models["m"].service_s, fleet.servers["a"].pool = service_s, "long"
    model(fleet, "used", uses_per_s=9.0)
    server(fleet, "b", "used").pool = "short"
    found = chosen(fleet, pool="short")
    assert (found.server, found.needs_placement) == ("a", True)
    placed = place(fleet, "m", NOW_S, pool="short", must_beat_s=found.expected_s)
    assert isinstance(placed, Placement)
    assert placed.server == "b"
    fleet.servers["b"].budget_bytes = 1
    assert isinstance(place(fleet, "m", NOW_S, pool="short", must_beat_s=found.expected_s), Refusal)


def test_a_server_in_no_pool_is_as_near_as_any() -> None:
    fleet = fleet_of(a=0.0, b=0.0)
    fleet.servers["b"].pool = "short"
    assert counted_in(fleet, "short").keys() == {"a", "b"}
    assert counted_in(fleet, "").keys() == {"a"}


# Ejected servers


def test_an_ejected_server_gets_nothing_while_another_has_it() -> None:
    fleet = fleet_of(a=0.0, b=5.0)
    fleet.servers["a"].is_ejected = True
    assert counted(fleet).keys() == {"b"}


def test_an_ejected_server_gets_a_probe_when_it_is_due() -> None:
    fleet = fleet_of(a=0.0, b=0.0)
    fleet.servers["a"].is_ejected, fleet.servers["a"].probe_from_s = True, NOW_S
    assert chosen(fleet) == Choice("a", 0.0, needs_placement=False, is_probe=True)
    fleet.servers["a"].probe_from_s = NOW_S + 1.0
    assert chosen(fleet).server == "b"


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_only_ejected_servers_have_it(names: list[str]) -> None:
    fleet = fleet_of(**dict.fromkeys(names, 0.0))
    for at in fleet.servers.values():
        at.is_ejected = True
    assert chosen(fleet) == Choice("a", inf, needs_placement=True)
    fleet.servers["a"].probe_from_s = NOW_S
    assert chosen(fleet).is_probe
    for at in fleet.servers.values():
        at.is_up = False
    assert chosen(fleet) == MISS


# Silent servers


def test_a_silent_server_gets_nothing_while_another_has_it_and_no_probe_either() -> None:
    fleet = fleet_of(a=0.0, b=5.0, c=0.0)
    fleet.servers["a"].silent_from_s = fleet.servers["c"].silent_from_s = NOW_S - 0.1
    fleet.servers["c"].is_ejected, fleet.servers["c"].probe_from_s = True, NOW_S - 1.0
    assert counted(fleet).keys() == {"b"}


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_where_only_silent_servers_have_it_a_load_is_better_once_it_takes_less_than_the_silence(names: list[str]) -> None:
    fleet = fleet_of(**dict.fromkeys(names, 0.0))
    for at in fleet.servers.values():
        at.silent_from_s = NOW_S - 0.5
    assert chosen(fleet) == Choice("a", 0.5 + SERVICE_S, needs_placement=False)
    for at in fleet.servers.values():
        at.silent_from_s = NOW_S - 1.5
    assert chosen(fleet) == Choice("a", 1.5 + SERVICE_S, needs_placement=True)


def test_rather_at_an_ejected_server_than_at_a_silent_one() -> None:
    fleet = fleet_of(a=0.0, b=5.0)
    fleet.servers["a"].silent_from_s, fleet.servers["b"].is_ejected = NOW_S, True
    assert chosen(fleet) == Choice("b", inf, needs_placement=True)
    fleet.servers["b"].is_up = False
    assert chosen(fleet).server == "a"


# For any fleet


@given(fleets(), draws, st.sampled_from([None, "short"]), st.none() | st.integers(0, 2**32 - 1))
def test_it_chooses_a_replica_that_serves_or_will(fleet: Fleet, draw: float, pool: str | None, affinity_key: int | None) -> None:
    for name in fleet.models:
        found = choose(fleet, name, NOW_S, draw, pool=pool, affinity_key=affinity_key)
        if found.server is None:
            assert found == MISS
            continue
        at = fleet.servers[found.server]
        assert at.is_up
        assert at.replicas[name].state in (ModelState.READY, ModelState.LOADING)
        assert found.needs_placement or not at.is_ejected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), draws, draws, st.none() | st.integers(0, 2**32 - 1))
def test_it_is_never_worse_than_any_other_by_more_than_what_sampling_may_cost(
    work_s: list[float], draw: float, other: float, affinity_key: int | None
) -> None:
    fleet = fleet_of(**{f"s{number}": work for number, work in enumerate(work_s)})
    found = chosen(fleet, draw=draw, affinity_key=affinity_key)
    at_random = work_s[int(other * len(work_s))] + SERVICE_S
    assert found.expected_s <= at_random + 0.5 * SERVICE_S + 1e-12
    assert found.server is not None
    assert found.expected_s == pytest.approx(fleet.servers[found.server].work_s + SERVICE_S)


def test_a_server_that_failed_the_request_is_avoided_where_there_is_another() -> None:
    fleet = fleet_of(a=0.0, b=5.0)
    avoid = frozenset({"a"})
    assert choose(fleet, "m", NOW_S, 0.0, avoid=avoid, limits=LIMITS).server == "b"
    assert choose(fleet, "m", NOW_S, 0.0, avoid=avoid | {"b"}, limits=LIMITS).server in ("a", "b"), "rather than nowhere"
    assert has_other(fleet, "m", avoid)
    assert not has_other(fleet, "m", avoid, is_idle=True)
    assert has_other(fleet, "m", frozenset({"b"}), is_idle=True)
    assert not has_other(fleet, "m", avoid | {"b"})
    fleet.servers["b"].is_ejected = True
    assert not has_other(fleet, "m", avoid)


def test_a_server_that_failed_the_request_is_better_than_one_that_is_silent() -> None:
    fleet = fleet_of(a=0.0, b=0.0)
    fleet.servers["b"].silent_from_s = NOW_S - 0.1
    assert not has_other(fleet, "m", frozenset({"a"}))
    assert choose(fleet, "m", NOW_S, 0.0, avoid=frozenset({"a"}), limits=LIMITS).server == "a"
    assert choose(fleet, "m", NOW_S, 0.0, avoid=frozenset({"a", "b"}), limits=LIMITS).server == "a"
