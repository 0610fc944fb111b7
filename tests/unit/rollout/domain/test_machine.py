"""The phases of a rollout before and after its steps, copies before weight, and what has to stay meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.core.errors import Conflict
from control_plane.objects.domain.rollout import Phase, Rollout, Step, in_force
from control_plane.objects.domain.route import Route, Target
from control_plane.rollout.domain.machine import GateVerdict, Hold, aborted, began, held_by, next_by_itself, paused, promoted
from tests.fakes.rollout_steps import steps_of

ROUTE = Route("r", "v1")
PLAIN = Rollout("r", "0" * 32, "v2", "v1", steps_of([10, 50], samples=20, min_s=30.0))
SHADOW = replace(PLAIN, shadow=Step(1000, 100, 5.0), bake_s=60.0)


def walked(rollout: Rollout, *verdicts: tuple[float, GateVerdict]) -> list[str]:
    """The phases, with the step, that a rollout has at these times."""
    phases = [f"{rollout.phase} {rollout.step}"]
    for now_s, verdict in verdicts:
        rollout = next_by_itself(rollout, ROUTE, verdict, now_s=now_s) or rollout
        phases.append(f"{rollout.phase} {rollout.step}")
    return phases


def test_shadow_steps_bake_promotion() -> None:
    enough = GateVerdict(samples=100)
    begun = began(SHADOW, now_s=0.0, by="me")
    assert (begun.weight, begun.stage, begun.present_step, begun.events[-1].what) == (0, 0, SHADOW.shadow, "began: v1 -> v2, shadow first")
    times = (3.0, 6.0, 20.0, 36.0, 66.0, 100.0, 126.0)
    assert walked(begun, *[(time, enough) for time in times]) == [
        "shadow 0", "shadow 0", "canary 0", "canary 0", "canary 1", "baking 1", "baking 1", "promoting 1",
    ]  # fmt: skip


def test_the_shadow_waits_for_its_samples_and_for_all_gateways_and_a_paused_one_stays() -> None:
    begun = began(SHADOW, now_s=0.0, by="")
    assert walked(begun, (50.0, GateVerdict(samples=99))) == ["shadow 0"] * 2
    assert walked(begun, (50.0, GateVerdict(samples=100, knows_all=False))) == ["shadow 0"] * 2
    assert walked(paused(begun, now_s=1.0), (50.0, GateVerdict(samples=100))) == ["shadow 0"] * 2


@pytest.mark.parametrize("phase", [Phase.SHADOW, Phase.CANARY, Phase.BAKING])
def test_in_each_phase_it_is_rolled_back_where_it_is_worse_and_can_be_ended_by_hand(phase: Phase) -> None:
    there = replace(SHADOW, phase=phase)
    failed = next_by_itself(there, ROUTE, GateVerdict("faults: 9 of 9"), now_s=1.0)
    assert failed is not None
    assert (failed.phase, failed.weight, in_force({"r": ROUTE}, {"r": failed})["r"]) == (Phase.ROLLED_BACK, 0, ROUTE)
    back = aborted(there, now_s=1.0)
    assert (back.phase, in_force({"r": ROUTE}, {"r": back})["r"]) == (Phase.ABORTED, ROUTE), "one step back, though it had all requests"
    assert promoted(there, now_s=1.0).phase is Phase.PROMOTING


def test_what_is_being_promoted_can_no_longer_be_changed() -> None:
    with pytest.raises(Conflict, match="cannot be aborted, it is promoting"):
        aborted(replace(SHADOW, phase=Phase.PROMOTING), now_s=1.0)


def test_who_gets_requests_in_each_phase() -> None:
    def route(phase: Phase, step: int = 0) -> Route:
        return in_force({"r": ROUTE}, {"r": replace(SHADOW, phase=phase, step=step)})["r"]

    assert route(Phase.SHADOW) == ROUTE
    assert route(Phase.CANARY, 1).targets == (Target("v2", 5000),)
    baking = route(Phase.BAKING, 1)
    assert (baking.model, baking.targets) == ("v2", (Target("v1", 0),)), "sequences that began at the present model end there"


def test_stages_only_grow() -> None:
    three = [replace(SHADOW, phase=Phase.CANARY, step=number) for number in (0, 1)]
    stages = [SHADOW.stage for SHADOW in (replace(SHADOW, phase=Phase.SHADOW), *three, replace(three[1], phase=Phase.BAKING))]
    assert stages == [0, 1, 2, 3]


# Copies

WIDE = replace(SHADOW, copies=4)


@pytest.mark.parametrize(("weight", "copies"), [(1, 1), (1000, 1), (2500, 1), (2501, 2), (5000, 2), (9900, 4), (10_000, 4)])
def test_copies_by_weight(weight: int, copies: int) -> None:
    assert WIDE.copies_for(weight) == copies


def test_copies_come_before_weight() -> None:
    begun = began(WIDE, now_s=0.0, by="")
    few, enough = GateVerdict(samples=100, copies=0), GateVerdict(samples=100, copies=1)
    assert walked(begun, (50.0, few), (51.0, enough), (99.0, enough), (99.0, GateVerdict(samples=100, copies=2))) == [
        "shadow 0", "shadow 0", "canary 0", "canary 0", "canary 1",
    ]  # fmt: skip
    last = replace(WIDE, phase=Phase.CANARY, step=1)
    assert walked(last, (99.0, GateVerdict(samples=100, copies=3)), (99.0, GateVerdict(samples=100, copies=4)))[1:] == [
        "canary 1",
        "baking 1",
    ]


@pytest.mark.parametrize(
    ("phase", "step", "kept"),
    [
        (Phase.SHADOW, 0, {"v1": 4, "v2": 1}),
        (Phase.CANARY, 0, {"v1": 4, "v2": 2}),
        (Phase.CANARY, 1, {"v1": 4, "v2": 4}),
        (Phase.BAKING, 1, {"v1": 4, "v2": 4}),
        (Phase.PROMOTING, 1, {"v1": 4, "v2": 4}),
        (Phase.PROMOTED, 1, {}),
        (Phase.ROLLED_BACK, 1, {}),
    ],
)
def test_what_has_to_stay(phase: Phase, step: int, kept: dict[str, int]) -> None:
    assert replace(WIDE, phase=phase, step=step).kept == kept


def test_of_two_versions_of_one_model_the_copies_are_the_same() -> None:
    one = replace(WIDE, model="v1", version="2", stable_version="1", phase=Phase.CANARY, step=1)
    assert one.kept == {"v1": 4}
    assert began(one, now_s=0.0, by="").events[-1].what == "began: v1@1 -> v1@2, shadow first"


@pytest.mark.parametrize(
    ("rollout", "verdict", "now_s", "expected"),
    [
        pytest.param(PLAIN, GateVerdict(samples=19), 60.0, Hold.SAMPLES, id="samples"),
        pytest.param(PLAIN, GateVerdict(samples=20), 29.0, Hold.TIME, id="time"),
        pytest.param(PLAIN, GateVerdict(samples=20), 30.0, None, id="goes on"),
        pytest.param(replace(PLAIN, copies=4), GateVerdict(samples=20, copies=1), 30.0, Hold.COPIES, id="copies"),
        pytest.param(PLAIN, GateVerdict(samples=20, knows_all=False), 30.0, Hold.EVIDENCE, id="evidence of others"),
        pytest.param(PLAIN, GateVerdict(samples=20, doubt="one tenant"), 30.0, Hold.DOUBT, id="one tenant alone"),
        pytest.param(replace(PLAIN, is_paused=True), GateVerdict(), 30.0, Hold.PAUSED, id="paused"),
        pytest.param(replace(SHADOW, phase=Phase.BAKING), GateVerdict(), 59.0, Hold.TIME, id="baking"),
        pytest.param(replace(PLAIN, phase=Phase.PROMOTING), GateVerdict(), 0.0, None, id="promoting"),
        pytest.param(replace(PLAIN, phase=Phase.ROLLED_BACK), GateVerdict(), 0.0, None, id="ended"),
    ],
)
def test_why_it_stays_at_its_stage(rollout: Rollout, verdict: GateVerdict, now_s: float, expected: Hold | None) -> None:
    assert held_by(rollout, verdict, now_s=now_s) is expected
