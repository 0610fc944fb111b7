"""The shadow before a rollout's first step: copies of answered requests, which are judged, and what they need."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from control_plane.core.errors import Conflict, InvalidRequest
from control_plane.objects.domain.rollout import Agreement, Phase, Step
from control_plane.objects.domain.route import CachePolicy, Mirror, Route
from control_plane.rollout.domain.machine import promoted
from tests.unit.rollout.rollout_bench import CONFIGS, SPEC, FakeCopies, process, refreshing, world

pytestmark = pytest.mark.usefixtures("known_thresholds")


SHADOWED = replace(SPEC, shadow=Step(1000, 50, 10.0), agreement=Agreement("same-space"))
REPEATABLE = Route("r", "v1", is_repeatable=True)


async def test_the_shadow_comes_first_and_the_first_step_follows_its_samples() -> None:
    one = process(state=world(REPEATABLE))
    started = await one.start(SHADOWED)
    assert (started.phase, started.agreement) == (Phase.SHADOW, Agreement("same-space", "", 0.99, 0.01)), "with its kind's own limits"
    assert (one.weights, list(one.known.shadows)) == (("v1", 0), ["r"])
    for _ in range(3):
        await one.tick(count=0)
    assert one.rollout.phase is Phase.SHADOW, "there are no samples"
    one.pair(60, differs=False)
    await one.tick(count=0)
    assert (one.rollout.phase, one.rollout.step, one.weights, dict(one.known.shadows)) == (Phase.CANARY, 0, ("v1", 100), {})
    await one.tick(count=0)
    assert one.rollouts.status(one.rollout).step_samples == 0
    assert one.rollouts.status(one.rollout).gates[-1].canary == 60


@pytest.mark.parametrize(
    ("how", "says"),
    [({"faults": True}, r"faults: \d+ of 60 requests, stable 0 of 60"), ({"differs": True}, "disagreement: 60 of 60 answers")],
)
async def test_what_is_worse_in_its_shadow_never_gets_a_request(how: dict[str, bool], says: str) -> None:
    one = process(state=world(REPEATABLE))
    await one.start(SHADOWED)
    one.pair(60, **how)
    await one.tick(count=0, after_s=0.25)
    assert one.rollout.phase is Phase.ROLLED_BACK
    assert re.match(says, one.rollout.reason)
    assert (max(event.weight for event in one.rollout.events), dict(one.known.shadows)) == (0, {})


@pytest.mark.parametrize(
    ("route", "model", "why"),
    [
        pytest.param(
            Route("r", "v1"),
            "v2",
            "nobody says that its requests may be computed twice: `tidegate routes set r --repeatable`",
            id="unknown",
        ),
        pytest.param(Route("r", "cached"), "v2", "", id="its model's responses are cached"),
        pytest.param(Route("r", "cached", cache=CachePolicy(is_on=False)), "v2", "nobody says", id="but not those of this route"),
        pytest.param(Route("r", "v1", cache=CachePolicy(is_on=True)), "v2", "", id="those of this route are"),
    ],
)
async def test_where_requests_may_not_be_computed_twice_there_is_no_shadow_and_it_says_so(route: Route, model: str, why: str) -> None:
    one = process(state=world(route))
    started = await one.start(replace(SHADOWED, model=model, agreement=None))
    assert started.phase is (Phase.CANARY if why else Phase.SHADOW)
    assert started.events[-1].what.startswith(f"began: {route.model} -> v2, " + (f"without a shadow: {why}" if why else "shadow first"))


async def test_of_decoupled_models_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    one = process(state=world(replace(REPEATABLE, model="decoupled")))
    monkeypatch.setitem(CONFIGS, "also_decoupled", CONFIGS["decoupled"])
    started = await one.start(replace(SHADOWED, model="also_decoupled", agreement=None))
    assert "its model is decoupled" in started.events[-1].what


async def test_an_agreement_needs_copies_and_a_kind_that_there_is() -> None:
    one = process()
    with pytest.raises(Conflict, match="answers can only be compared where requests are copied, and of route 'r' nobody says"):
        await one.start(SHADOWED)
    two = process(state=world(REPEATABLE))
    with pytest.raises(InvalidRequest, match="there is no agreement 'alike'"):
        await two.start(replace(SHADOWED, agreement=Agreement("alike")))


async def test_a_tensor_that_no_answer_has_is_refused_with_those_there_are() -> None:
    one = process(state=world(Route("r", "v1", is_repeatable=True)))
    with pytest.raises(InvalidRequest, match="no output 'NOPE' to compare; it has Y"):
        await one.start(replace(SHADOWED, agreement=Agreement("same-space", "NOPE")))
    assert (await one.start(replace(SHADOWED, agreement=Agreement("same-space", "Y")))).phase is Phase.SHADOW


@pytest.mark.parametrize(("mirror", "left"), [(Mirror("v2"), None), (Mirror("v2", "7"), None), (Mirror("other"), Mirror("other"))])
async def test_a_mirror_of_the_model_that_is_promoted_ends_and_another_one_stays(mirror: Mirror, left: Mirror | None) -> None:
    one = process(state=world(replace(REPEATABLE, mirror=mirror)))
    await one.start()
    await refreshing(one, one.rollouts.change("r", lambda rollout: promoted(rollout, now_s=one.clock[0])))
    for _ in range(3):
        await one.tick(count=0)
    assert one.rollout.phase is Phase.PROMOTED
    assert (one.known.stored_routes["r"].model, one.known.stored_routes["r"].mirror) == ("v2", left)


@pytest.mark.parametrize(
    ("route", "said"),
    [
        pytest.param(replace(REPEATABLE, mirror=Mirror("v2")), [], id="good"),
        pytest.param(
            replace(REPEATABLE, mirror=Mirror("other")), ["copies to the mirror will fail", "output Y was FP32"], id="other tensors"
        ),
        pytest.param(Route("r", "v1", mirror=Mirror("v2")), ["no request", "`tidegate routes set r --repeatable`"], id="not repeatable"),
        pytest.param(REPEATABLE, [], id="no mirror"),
    ],
)
async def test_what_is_said_of_a_mirror(route: Route, said: list[str]) -> None:
    doubts = await process(state=world()).rollouts.mirror_warnings(route)
    assert len(doubts) == bool(said)
    assert all(part in doubts[0] for part in said)


@pytest.mark.parametrize("there", [{"v1": 1}, {"v2": 1}], ids=["no copy of the mirror", "no copy of the route's model"])
async def test_what_is_said_of_a_mirror_in_a_fleet_loads_nothing(there: dict[str, int]) -> None:
    one = process(state=world(), copies=FakeCopies(there))
    (absent,) = {"v1", "v2"} - there.keys()
    (said,) = await one.rollouts.mirror_warnings(replace(REPEATABLE, mirror=Mirror("other" if absent == "v1" else "v2")))
    assert f"model {absent!r} is not loaded" in said, "reading its configuration would load it"
