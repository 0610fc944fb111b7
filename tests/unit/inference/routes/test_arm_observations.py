from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from control_plane.core.infer_call import InferCall
from control_plane.core.principal import Principal
from control_plane.core.scope import Scopes
from control_plane.inference.domain.observation import Observation
from control_plane.inference.retries.faults import Fault
from control_plane.inference.routes.arm_observations import MAX_HELD, ArmObservations
from control_plane.inference.routes.targets import Arm
from control_plane.objects.domain.rollout import Phase, Rollout, Step
from control_plane.objects.domain.route import Route, Target
from tests.fakes.governance import governance, known_state

ROUTE = Route("r", "stable", targets=(Target("canary", 5000),), salt="id")
ROLLOUT = Rollout("r", "id", "canary", "stable", (Step(5000, 100, 1.0),))
STABLE, CANARY = (InferCall(name, "", "", ()) for name in ("stable", "canary"))


def observations(*, rollout: Rollout | None = ROLLOUT) -> ArmObservations:
    known = known_state(routes=(ROUTE,))
    if rollout is not None:
        known.rollouts, known.rollout_ids = {"r": rollout}, {"r": rollout.id}
    return ArmObservations(governance(known).access)


def arm(*, is_stable: bool = False, digest: int = 7, is_assigned: bool = True) -> Arm:
    return Arm(ROUTE, STABLE if is_stable else CANARY, STABLE, digest, is_assigned)


ANN = Principal("ann", "key", Scopes(()))


def running(*, sent_s: float | None = 1.0, is_cache_hit: bool = False) -> Any:
    return cast("Any", SimpleNamespace(sent_s=sent_s, is_cache_hit=is_cache_hit, principal=ANN))


@pytest.mark.parametrize("is_stable", [True, False])
@pytest.mark.parametrize(("fault", "is_fault"), [(None, False), (Fault.OTHER, True), (Fault.TIMED_OUT, True), (Fault.DEAD_STUB, True)])
def test_what_was_computed_is_seen_once(is_stable: bool, fault: Fault | None, is_fault: bool) -> None:
    seen = observations()
    seen.add(arm(is_stable=is_stable), running(), fault, now_s=1.25)
    assert seen.take() == (Observation("r", "id", is_stable, 7, is_fault, 0.25, fault is Fault.DEAD_STUB, tenant="ann"),)
    assert seen.take() == ()


@pytest.mark.parametrize(
    ("arm", "running", "fault"),
    [
        pytest.param(arm(is_assigned=False), running(), None, id="its caller chose"),
        pytest.param(arm(), running(sent_s=None), None, id="it was not sent, or joined another"),
        pytest.param(arm(), running(is_cache_hit=True), None, id="a hit"),
        pytest.param(arm(), running(), Fault.MODEL_MISSING, id="not loaded"),
        pytest.param(arm(), running(), Fault.NOT_READY, id="loading"),
        pytest.param(arm(), running(), Fault.QUEUE_FULL, id="busy"),
        pytest.param(arm(), running(), Fault.NOT_SENT, id="its server is gone"),
    ],
)
def test_what_says_nothing_of_a_model_is_not_seen(arm: Arm, running: Any, fault: Fault | None) -> None:
    seen = observations()
    seen.add(arm, running, fault, now_s=2.0)
    assert seen.take() == ()


@pytest.mark.parametrize(("sticky", "tenant"), [("", "ann"), ("header:x-user", "ann"), ("sequence", "ann"), ("tenant", ""), ("key", "")])
def test_tenants_are_kept_apart_where_each_may_be_at_both_models(sticky: str, tenant: str) -> None:
    seen = observations()
    seen.add(replace(arm(), route=replace(ROUTE, sticky=sticky)), running(), None, now_s=2.0)
    assert [each.tenant for each in seen.take()] == [tenant]


def test_without_a_rollout_nothing_is_seen() -> None:
    seen = observations(rollout=None)
    seen.add(arm(), running(), None, now_s=2.0)
    assert seen.take() == ()


@pytest.mark.parametrize(
    ("rollout", "model"),
    [
        pytest.param(replace(ROLLOUT, id="another"), "canary", id="the route's next rollout has begun"),
        pytest.param(ROLLOUT, "earlier", id="a sequence that began at a model of the rollout before"),
    ],
)
def test_what_another_rollout_has_assigned_says_nothing_of_this_one(rollout: Rollout, model: str) -> None:
    seen = observations(rollout=rollout)
    seen.add(Arm(ROUTE, InferCall(model, "", "", ()), STABLE, 7), running(), Fault.OTHER, now_s=2.0)
    assert seen.take() == ()


def test_in_the_bake_the_routes_own_model_is_seen_as_the_next_one() -> None:
    route = Route("r", "canary", targets=(Target("stable", 0),), salt="id")
    seen = observations(rollout=replace(ROLLOUT, phase=Phase.BAKING))
    for call in (CANARY, STABLE):
        seen.add(Arm(route, call, CANARY, 7), running(), Fault.DEAD_STUB, now_s=2.0)
    assert [each.is_stable for each in seen.take()] == [False, True]


def test_of_too_many_a_part_is_kept_whose_digests_alone_decide() -> None:
    seen = observations()
    digests = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(5 * MAX_HELD)]
    for digest in digests:
        seen.add(arm(digest=digest, is_stable=digest % 2 == 0), running(), None, now_s=2.0)
    kept = [each.digest for each in seen.take()]
    assert MAX_HELD / 4 <= len(kept) < MAX_HELD
    below = max(kept)
    assert sorted(kept) == sorted(each for each in digests if each <= below), "all of those whose digest is small enough"
    seen.add(arm(digest=2**64 - 1), running(), None, now_s=2.0)
    assert len(seen.take()) == 1
