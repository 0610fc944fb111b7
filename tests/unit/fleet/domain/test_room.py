from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.fleet.domain.fleet import Fleet
from control_plane.fleet.domain.room import replicas_beside
from tests.unit.fleet.domain.fleets import model, server


def fleet_of(servers: int, *, budget: int, stable_on: int = 1, others: tuple[str, ...] = ()) -> Fleet:
    """Servers of so much memory, of which the first have `stable`, of two units; `next` takes three."""
    fleet = Fleet()
    model(fleet, "stable", size=2)
    model(fleet, "next", size=3)
    for number in range(servers):
        server(fleet, f"s{number}", *(("stable",) if number < stable_on else ()), *others, budget=budget)
    return fleet


@pytest.mark.parametrize(
    ("fleet", "stay", "room"),
    [
        pytest.param(fleet_of(1, budget=5), 1, 1, id="beside it"),
        pytest.param(fleet_of(1, budget=4), 1, 0, id="not beside it"),
        pytest.param(fleet_of(1, budget=4), 0, 1, id="in its place"),
        pytest.param(fleet_of(3, budget=4), 1, 2, id="on other servers"),
        pytest.param(fleet_of(3, budget=4, stable_on=3), 3, 0, id="it is everywhere"),
        pytest.param(fleet_of(3, budget=4, stable_on=3), 1, 2, id="it may go from two of three"),
        pytest.param(fleet_of(2, budget=5, others=("busy",)), 1, 2, id="others may be evicted"),
        pytest.param(fleet_of(2, budget=2), 1, 0, id="too large for any"),
    ],
)
def test_how_many_there_could_be(fleet: Fleet, stay: int, room: int) -> None:
    assert replicas_beside(fleet, "next", {"stable": stay, "next": 1}) == room


def test_what_others_have_to_have_stays() -> None:
    fleet = fleet_of(2, budget=5, others=("needed",))
    assert replicas_beside(fleet, "next", {"stable": 1}) == 2
    fleet.models["needed"].spec = replace(fleet.models["needed"].spec, min_replicas=2)
    assert replicas_beside(fleet, "next", {"stable": 1}) == 1


def test_a_server_that_leaves_or_has_not_the_labels_has_no_room() -> None:
    fleet = fleet_of(2, budget=9)
    fleet.servers["s1"].is_draining = True
    assert replicas_beside(fleet, "next", {"stable": 1}) == 1
    fleet.models["next"].spec = replace(fleet.models["next"].spec, server_labels={"gpu": "yes"})
    assert replicas_beside(fleet, "next", {"stable": 1}) == 0
    assert replicas_beside(fleet, "unknown", {}) == 0
