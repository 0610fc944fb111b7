"""Whether a model that has replicas gets another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.core.model import ModelState
from control_plane.fleet.domain.placement.placement import Obstacle, Placement, Refusal, place
from tests.unit.fleet.domain.fleets import NOW_S, server
from tests.unit.fleet.domain.placement.placement_bench import LIMITS, fleet_of, placed, refused


def test_a_model_has_no_more_replicas_than_it_may() -> None:
    fleet = fleet_of()
    fleet.models["new"].spec = replace(fleet.models["new"].spec, max_replicas=1)
    server(fleet, "has", "new")
    server(fleet, "free")
    assert refused(fleet).obstacle is Obstacle.ENOUGH_REPLICAS
    fleet.servers["has"].replicas["new"].state = ModelState.UNLOADING
    assert placed(fleet).server == "free"


@pytest.mark.parametrize(
    ("must_beat_s", "is_worth_it"),
    [
        pytest.param(1.0, False, id="the load takes longer"),
        pytest.param(1.5, False, id="others would wait"),
        pytest.param(2.05, True, id="a little sooner"),
    ],
)
def test_another_replica_has_to_be_worth_what_it_costs(must_beat_s: float, is_worth_it: bool) -> None:
    fleet = fleet_of(used=0.5)
    server(fleet, "has", "new", work_s=3.0)
    server(fleet, "s", "used", budget=1)
    found = place(fleet, "new", NOW_S, must_beat_s=must_beat_s, limits=LIMITS)
    assert isinstance(found, Placement) is is_worth_it
    if not is_worth_it:
        refusal = refused(fleet, must_beat_s=must_beat_s)
        assert refusal.obstacle is Obstacle.NOT_SOONER
        assert isinstance(place(fleet, "new", NOW_S, must_beat_s=refusal.must_beat_s + 1e-9, limits=LIMITS), Placement)
        assert isinstance(place(fleet, "new", NOW_S, must_beat_s=refusal.must_beat_s - 1e-9, limits=LIMITS), Refusal)


def test_beside_one_that_is_being_loaded_it_has_to_serve_sooner_by_a_twentieth_of_a_load() -> None:
    fleet = fleet_of(used=0.5)
    server(fleet, "has", "new", work_s=3.0)
    server(fleet, "s", "used", budget=1)
    fleet.servers["has"].replicas["new"].state = ModelState.LOADING
    assert refused(fleet, must_beat_s=2.05).obstacle is Obstacle.NOT_SOONER
    assert isinstance(place(fleet, "new", NOW_S, must_beat_s=2.5, limits=LIMITS), Placement)


@pytest.mark.parametrize(
    ("now_takes_s", "objective_s", "prepare", "is_worth_it"),
    [
        pytest.param(0.3, None, {}, False, id="no objective"),
        pytest.param(0.3, 0.4, {}, False, id="within it"),
        pytest.param(0.3, 0.2, {}, True, id="too slow, and those who come later are served in time"),
        pytest.param(0.3, 0.2, {"rate": 0.1}, False, id="hardly any will come"),
        pytest.param(0.3, 0.2, {"work_s": 0.2}, False, id="too slow there as well"),
        pytest.param(0.3, 0.005, {}, False, id="an objective that no server could reach"),
        pytest.param(0.3, 0.2, {"victim": 0.5, "rate": 4.0}, False, id="others would lose more"),
        pytest.param(0.3, 0.2, {"victim": 1e-8}, True, id="others would lose less"),
        pytest.param(0.3, 0.2, {"victim": 0.5, "rate": 20.0}, True, id="many will come"),
        pytest.param(0.3, 0.2, {"loading": True}, False, id="one is under way"),
    ],
)
def test_another_replica_for_the_objectives_sake(
    now_takes_s: float, objective_s: float | None, prepare: dict[str, float], is_worth_it: bool
) -> None:
    fleet = fleet_of(used=prepare.get("victim", 0.0))
    facts = fleet.models["new"]
    facts.spec, facts.rate_fast = replace(facts.spec, latency_objective_s=objective_s), prepare.get("rate", 4.0)
    server(fleet, "has", "new")
    server(fleet, "s", *(["used"] if "victim" in prepare else []), budget=1, work_s=prepare.get("work_s", 0.0))
    if "loading" in prepare:
        server(fleet, "loads", "new").replicas["new"].state = ModelState.LOADING
    found = place(fleet, "new", NOW_S, must_beat_s=now_takes_s, limits=LIMITS)
    assert isinstance(found, Placement) is is_worth_it, found


def test_a_rare_model_does_not_take_the_place_of_what_everybody_uses_until_it_has_waited() -> None:
    fleet = fleet_of(popular=50.0)
    server(fleet, "s", "popular", budget=1)
    refusal = refused(fleet)
    assert (refusal.obstacle, refusal.retry_after_s) == (Obstacle.CHURN, 10.0)
    fleet.models["new"].refused_since_s = NOW_S
    fleet.models["popular"].last_used_s = NOW_S + 7.0
    assert refused(fleet, now_s=NOW_S + 7.0).retry_after_s == pytest.approx(3.0)
    fleet.models["popular"].last_used_s = NOW_S + 10.0
    assert placed(fleet, now_s=NOW_S + 10.0).victims == ("popular",)


def test_a_rare_model_may_take_the_place_of_one_that_is_used_now_and_then() -> None:
    fleet = fleet_of(sometimes=0.4)
    server(fleet, "s", "sometimes", budget=1)
    assert placed(fleet).victims == ("sometimes",)


# On trial


def test_one_on_trial_takes_room_that_is_free() -> None:
    fleet = fleet_of(used=5.0)
    fleet.models["new"].is_on_trial = True
    server(fleet, "full", "used", "other")
    server(fleet, "free", "another", work_s=9.0)
    assert (placed(fleet).server, placed(fleet).victims) == ("free", ())


def test_for_one_on_trial_nothing_goes_however_long_it_has_been_refused() -> None:
    fleet = fleet_of(rare=0.0001)
    fleet.models["new"].is_on_trial, fleet.models["new"].refused_since_s = True, NOW_S - 1e6
    server(fleet, "full", "rare", "other")
    refusal = refused(fleet)
    assert (refusal.obstacle, refusal.text) == (Obstacle.ON_TRIAL, "'new' failed to load, and nothing is unloaded to try it again")
    fleet.models["new"].is_on_trial = False
    assert placed(fleet).victims, "else something does"
