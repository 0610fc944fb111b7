"""Properties of placement and eviction in random fleets."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, Replica, Server
from control_plane.fleet.domain.placement.limits import PlacementLimits
from control_plane.fleet.domain.placement.placement import Placement, Refusal, excess, place, victims_on
from tests.unit.fleet.domain.fleets import NOW_S, fleets, model, server

LIMITS = PlacementLimits(min_residency_loads=2.0, patience_loads=10.0, longest_wait_s=60.0)


@given(fleets(), st.data())
def test_a_placement_is_within_the_budget_and_takes_nothing_that_is_protected(fleet: Fleet, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(fleet.models)))
    found = place(fleet, name, NOW_S, pool=data.draw(st.sampled_from([None, "short", "unheard of"])), limits=LIMITS)
    if isinstance(found, Refusal):
        assert found.retry_after_s > 0
        return
    at, facts = fleet.servers[found.server], fleet.models[name]
    assert at.is_up
    assert not at.is_ejected
    assert name not in at.replicas
    assert facts.quarantined_until_s <= NOW_S
    assert found.ready_s >= NOW_S + facts.load_s
    assert found.cost_s >= found.expected_s >= facts.load_s
    staying = [
        replica for replica in at.replicas.values() if replica.state is not ModelState.UNLOADING and replica.model not in found.victims
    ]
    assert sum(replica.bytes for replica in staying) + facts.resident_bytes <= at.budget_bytes
    assert len(set(found.victims)) == len(found.victims)
    for victim in found.victims:
        assert _may_go(fleet, at, at.replicas[victim])


def _may_go(fleet: Fleet, at: Server, replica: Replica) -> bool:
    facts = fleet.models[replica.model]
    others = len(fleet.ready_replicas(replica.model)) - 1
    is_old = replica.since_s + 2.0 * facts.load_s <= NOW_S
    return (
        replica.state is ModelState.READY
        and not (replica.in_flight or replica.sequences or replica.is_step)
        and is_old
        and others >= facts.spec.min_replicas
    )


@settings(max_examples=50)
@given(fleets())
def test_whoever_waits_is_served_in_a_bounded_time(fleet: Fleet) -> None:
    """Holds where nothing is pinned and every use ends."""
    for at in fleet.servers.values():
        at.loads_until_s = NOW_S
        for replica in at.replicas.values():
            replica.in_flight = replica.sequences = 0
            replica.is_step, replica.state = False, ModelState.READY
    for each in fleet.models.values():
        each.spec = replace(each.spec, min_replicas=0)
    facts = model(fleet, "new", uses_per_s=0.001, load_s=7.0)
    facts.refused_since_s = NOW_S
    server(fleet, "full", *sorted(fleet.models.keys() - {"new"}), budget=sum(each.resident_bytes for each in fleet.models.values()) - 1)
    longest_s = 1.001 * max(10.0 * facts.load_s, 2.0 * max(each.load_s for each in fleet.models.values()))
    for other in fleet.models.values():  # The others are asked for all the time.
        if other is not facts:
            other.rate_fast = other.rate_slow = 1000.0
            other.last_used_s = NOW_S + longest_s
    assert isinstance(place(fleet, "new", NOW_S + longest_s, limits=LIMITS), Placement)


@settings(max_examples=30)
@given(fleets(), st.data())
def test_it_changes_nothing_and_decides_the_same_again(fleet: Fleet, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(fleet.models)))
    assert place(fleet, name, NOW_S) == place(fleet, name, NOW_S)


@given(fleets(), st.data())
def test_an_announced_load_evicts_in_its_turn_what_a_placement_on_its_server_alone_would(fleet: Fleet, data: st.DataObject) -> None:
    assume(fleet.servers)
    at, name = data.draw(st.sampled_from(list(fleet.servers.values()))), data.draw(st.sampled_from(sorted(fleet.models)))
    fleet.drop_replica(at, name)
    alone = place(Fleet({at.name: at}, fleet.models, fleet.holders), name, NOW_S, limits=LIMITS)
    fleet.put_replica(at, Replica(name, ModelState.LOADING, 0, NOW_S, NOW_S + 1.0))
    assert victims_on(fleet, at, name, NOW_S, limits=LIMITS) == (alone.victims if isinstance(alone, Placement) else None)


class TestSurplus:
    def test_goes_from_a_server_that_holds_more_than_its_budget_what_is_missed_least_first(self) -> None:
        fleet = Fleet()
        model(fleet, "rare", uses_per_s=0.01, idle_s=50.0, size=2)
        model(fleet, "often", uses_per_s=5.0, size=2)
        at = server(fleet, "s", "often", "rare", budget=3)
        assert excess(fleet, at, NOW_S, limits=LIMITS) == ("rare",)
        at.budget_bytes = 1
        assert excess(fleet, at, NOW_S, limits=LIMITS) == ("rare", "often")

    def test_is_all_that_may_go_where_that_is_not_enough(self) -> None:
        fleet = Fleet()
        at = server(fleet, "s", "busy", "a", "b", budget=1)
        at.replicas["busy"].in_flight = 1
        at.replicas["busy"].bytes = 2
        assert set(excess(fleet, at, NOW_S, limits=LIMITS)) == {"a", "b"}
        assert isinstance(place(fleet, "busy", NOW_S), Refusal)

    def test_is_nothing_within_the_budget_or_while_nothing_may_go(self) -> None:
        fleet = Fleet()
        at = server(fleet, "s", "a", "b", budget=2)
        assert excess(fleet, at, NOW_S, limits=LIMITS) == ()
        at.budget_bytes = 1
        for replica in at.replicas.values():
            replica.in_flight = 1
        assert excess(fleet, at, NOW_S, limits=LIMITS) == ()
