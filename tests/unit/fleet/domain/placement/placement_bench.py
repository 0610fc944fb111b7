"""Fleets to place models in, and what was decided."""

from __future__ import annotations

from control_plane.fleet.domain.fleet import Fleet
from control_plane.fleet.domain.placement.limits import PlacementLimits
from control_plane.fleet.domain.placement.placement import Placement, Refusal, place
from tests.unit.fleet.domain.fleets import NOW_S, model

LIMITS = PlacementLimits(min_residency_loads=2.0, patience_loads=10.0, longest_wait_s=60.0)


def placed(
    fleet: Fleet, name: str = "new", *, now_s: float = NOW_S, pool: str | None = None, limits: PlacementLimits = LIMITS
) -> Placement:
    found = place(fleet, name, now_s, pool=pool, limits=limits)
    assert isinstance(found, Placement), found
    return found


def refused(fleet: Fleet, name: str = "new", *, now_s: float = NOW_S, must_beat_s: float = 1e9) -> Refusal:
    found = place(fleet, name, now_s, must_beat_s=must_beat_s, limits=LIMITS)
    assert isinstance(found, Refusal), found
    return found


def fleet_of(**uses_per_s: float) -> Fleet:
    """Make a fleet with these models, used at these rates, and with a model `new` that was just asked for,
    for the first time."""
    fleet = Fleet()
    for name, rate in uses_per_s.items():
        model(fleet, name, uses_per_s=rate)
    model(fleet, "new", uses_per_s=0.03, idle_s=0.0)
    return fleet
