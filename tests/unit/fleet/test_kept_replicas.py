"""Replicas that a rollout needs: not evicted, not scaled down, and loaded before requests come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from control_plane.fleet.domain.fleet import Fleet
from control_plane.fleet.domain.placement.autoscaling import desired_replicas
from control_plane.fleet.domain.placement.placement import Obstacle, Placement, Refusal, place
from control_plane.fleet.kept_replicas import KeptReplicas
from tests.unit.fleet.domain.fleets import NOW_S, model, server


def fleet_of(budget: int = 1) -> Fleet:
    """Two servers: `stable` is on the first, the second is empty."""
    fleet = Fleet()
    model(fleet, "stable", uses_per_s=0.001)
    model(fleet, "next", uses_per_s=10.0, idle_s=0.0)
    server(fleet, "s0", "stable", budget=budget)
    return fleet


def kept(fleet: Fleet, **wanted: int) -> KeptReplicas:
    def keep_replicas(counts: dict[str, int]) -> None:
        fleet.kept = dict(counts)

    made = KeptReplicas(cast("Any", SimpleNamespace(fleet=fleet, keep_replicas=keep_replicas)))
    made.keep(wanted)
    return made


def test_what_a_rollout_needs_is_not_evicted() -> None:
    fleet = fleet_of()
    found = place(fleet, "next", NOW_S)
    assert isinstance(found, Placement)
    assert found.victims == ("stable",)
    kept(fleet, stable=1)
    refused = place(fleet, "next", NOW_S)
    assert isinstance(refused, Refusal)
    assert refused.obstacle is Obstacle.IN_USE


def test_as_many_are_wanted_as_it_needs() -> None:
    fleet = fleet_of(budget=2)
    server(fleet, "s1", budget=2)
    assert desired_replicas(fleet.models["next"], fleet, NOW_S) == 0
    kept(fleet, next=2, stable=1)
    assert desired_replicas(fleet.models["next"], fleet, NOW_S) == 2
    kept(fleet)
    assert desired_replicas(fleet.models["next"], fleet, NOW_S) == 0


def test_no_room_for_both_says_what_is_needed() -> None:
    fleet = fleet_of()
    copies = kept(fleet)
    assert (copies.ready("stable"), copies.ready("next")) == (1, 0)
    assert copies.why_no_room("next", 1, {"stable": 1}) == (
        "there is no room for both: 1 replicas of 'next', of 1 bytes each, beside 1 of 'stable'; there is room for 0"
    )
    assert copies.why_no_room("other", 1, {"stable": 1}) == "the fleet does not know the model 'other'"
    server(fleet, "s1", budget=1)
    assert copies.why_no_room("next", 1, {"stable": 1}) == ""
