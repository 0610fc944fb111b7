from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from control_plane.core.errors import Conflict, InvalidRequest, ModelNotFound, ObjectNotFound, StoreUnavailable
from control_plane.inference.domain.observation import Observation
from control_plane.objects.domain.rollout import Phase, Rollout
from control_plane.objects.domain.route import Route, Target
from control_plane.objects.objects import Objects
from control_plane.rollout.domain.machine import aborted, paused, promoted, resumed
from control_plane.rollout.rollouts import RolloutSpec
from tests.fakes.rollout_steps import steps_of
from tests.fakes.stores.evidence_board import FakeEvidenceBoard
from tests.unit.rollout.rollout_bench import CONFIGS, SPEC, VERSIONS, FakeCopies, Process, Y, process, refreshing, world

pytestmark = pytest.mark.usefixtures("known_thresholds")


async def test_it_goes_from_step_to_step_and_becomes_the_routes_model() -> None:
    one = process()
    await one.start()
    assert one.weights == ("v1", 100)
    seen = [one.weights]
    for _ in range(30):
        await one.tick()
        if one.weights != seen[-1]:
            seen.append(one.weights)
    assert seen == [("v1", 100), ("v1", 1000), ("v1", 5000), ("v2", 0)]
    assert one.rollout.phase is Phase.PROMOTED
    assert one.known.stored_routes["r"] == Route("r", "v2")
    assert [event.what for event in one.rollout.events] == ["began: v1 -> v2", "step 2: 10 %", "step 3: 50 %", "promoted: v2", "promoted"]
    assert [round(event.at_s) for event in one.rollout.events] == [1000, 1030, 1060, 1090, 1110]


async def test_a_step_waits_for_its_samples_and_says_for_how_long() -> None:
    one = process()
    await one.start()
    for _ in range(30):
        await one.tick(count=0)
    assert one.weights == ("v1", 100)
    assert one.rollouts.status(one.rollout).left_s is None
    await one.tick(count=10)
    assert one.rollouts.status(one.rollout).step_samples == 10
    assert one.rollouts.status(one.rollout).left_s == pytest.approx(300.0, rel=0.1)


async def test_one_that_fails_is_rolled_back_at_the_next_tick() -> None:
    one = process()
    started = await one.start()
    await one.tick(count=30, faults=True, after_s=0.25)
    assert one.rollout.phase is Phase.ROLLED_BACK
    assert re.fullmatch(r"faults: \d+ of 30 requests, stable 0 of 30", one.rollout.reason)
    assert one.known.routes["r"] == Route("r", "v1")
    assert one.given_up == [started.id]
    await one.tick(count=30)
    assert one.rollout.phase is Phase.ROLLED_BACK


@pytest.mark.parametrize("board", [None, FakeEvidenceBoard()])
async def test_what_one_tenant_alone_says_holds_it_where_it_is_until_somebody_decides(
    board: FakeEvidenceBoard | None, caplog: pytest.LogCaptureFixture
) -> None:
    one = process(board=board)
    rollout_id = (await one.start()).id
    for _ in range(6):
        for number in range(100):
            unit = hash((one.clock[0], number)) % 2**64
            loud = Observation("r", rollout_id, False, unit ^ 1, True, 0.01, tenant="loud")
            one.seen += [loud, replace(loud, is_stable=True, digest=unit ^ 2, is_fault=False)]
            one.seen += [
                replace(loud, is_stable=each > 0, digest=unit ^ (4 << each), is_fault=False, tenant=f"t{number}") for each in (0, 1)
            ]
        await one.tick(count=0)
        if one.shared is not None:
            await one.shared.exchange()
            await one.rollouts.tick()
    status = one.rollouts.status(one.rollout)
    assert (one.rollout.phase, one.rollout.step, one.rollout.reason) == (Phase.CANARY, 0, "")
    assert status.step_samples > SPEC.steps[0].samples
    assert "hangs on one tenant's requests" in status.doubt
    assert [each.getMessage().partition(": ")[0] for each in caplog.records] == ["rollout of r to v2 holds"], "said once"
    await refreshing(one, one.rollouts.change("r", lambda rollout: promoted(rollout, now_s=one.clock[0])))
    await one.tick(count=0)
    assert one.rollout.phase in (Phase.PROMOTING, Phase.PROMOTED)


async def test_of_one_that_has_ended_what_was_found_stays_but_not_each_of_its_callers() -> None:
    one = process(board=FakeEvidenceBoard())
    rollout_id = (await one.start()).id
    assert one.shared is not None
    one.serve(30, faults=True)
    await one.rollouts.tick()
    await one.shared.exchange()
    evidence = one.rollouts._evidence[rollout_id][0], one.shared._parts[rollout_id].evidence
    assert all(each._units for each in evidence)
    await one.known.start()
    assert one.rollout.phase is Phase.ROLLED_BACK
    found = [(gate.name, gate.canary, gate.canary_bad) for gate in one.rollouts.status(one.rollout).gates]
    await one.rollouts.tick()
    await one.shared.exchange()
    assert not any(each._units or each._timed for each in evidence)
    assert [(gate.name, gate.canary, gate.canary_bad) for gate in one.rollouts.status(one.rollout).gates] == found


async def test_while_the_store_is_away_nothing_advances_and_what_is_worse_gets_no_request() -> None:
    one = process()
    await one.start()
    one.store.is_away = True
    one.clock[0] += 1000.0
    one.serve(50)
    await one.rollouts.tick()
    assert one.weights == ("v1", 100)
    one.serve(50, faults=True)
    one.clock[0] += 1.0
    one.serve(50, faults=True)
    await one.rollouts.tick()
    assert one.known.routes["r"] == Route("r", "v1")
    one.store.is_away = False
    await one.tick(count=0)
    assert one.rollout.phase is Phase.ROLLED_BACK


async def test_only_the_leader_goes_forward_and_any_may_roll_back() -> None:
    state, clock = world(), [1000.0]
    leader, other = process(state=state, clock=clock, token=5), process(state=state, clock=clock, token=None)
    await leader.start()
    for _ in range(10):
        await other.tick()
    assert other.weights == ("v1", 100)
    await other.tick(count=30, faults=True)
    assert other.rollout.phase is Phase.ROLLED_BACK


async def test_a_leader_of_before_writes_nothing_any_more() -> None:
    state, clock = world(), [1000.0]
    late, leader = process(state=state, clock=clock, token=4), process(state=state, clock=clock, token=5)
    await leader.start()
    for _ in range(4):
        await leader.tick()
    assert leader.rollout.token == 5
    for _ in range(10):
        await late.tick()
    assert late.rollout.step == 1


async def finish(process: Process) -> Rollout:
    for _ in range(100):
        await process.tick()
        if not process.rollout.is_under_way:
            return process.rollout
    raise AssertionError(process.rollout)


async def test_by_hand() -> None:
    one = process()
    await one.start()
    await refreshing(one, one.rollouts.change("r", lambda rollout: paused(rollout, now_s=one.clock[0], by="me")))
    for _ in range(10):
        await one.tick()
    assert (one.rollout.is_paused, one.rollout.step) == (True, 0)
    await refreshing(one, one.rollouts.change("r", lambda rollout: resumed(rollout, now_s=one.clock[0])))
    await one.tick()
    assert one.rollout.step == 1
    await refreshing(one, one.rollouts.change("r", lambda rollout: promoted(rollout, now_s=one.clock[0])))
    assert one.weights == ("v2", 0)
    assert (await finish(one)).phase is Phase.PROMOTED
    with pytest.raises(Conflict, match="cannot be aborted, it is promoted"):
        await one.rollouts.change("r", lambda rollout: aborted(rollout, now_s=one.clock[0]))


async def test_a_paused_one_is_rolled_back_all_the_same() -> None:
    one = process()
    await one.start()
    await refreshing(one, one.rollouts.change("r", lambda rollout: paused(rollout, now_s=one.clock[0])))
    await one.tick(count=30, faults=True)
    assert one.rollout.phase is Phase.ROLLED_BACK


async def test_abort_sends_everybody_back_and_another_may_begin() -> None:
    one = process()
    first = await one.start()
    await refreshing(one, one.rollouts.change("r", lambda rollout: aborted(rollout, now_s=one.clock[0])))
    assert one.known.routes["r"] == Route("r", "v1")
    second = await one.start()
    assert second.id != first.id
    assert [event.what for event in second.events] == ["began: v1 -> v2", "aborted: by hand", "began: v1 -> v2"]


async def test_a_route_that_is_changed_meanwhile_ends_it() -> None:
    one = process()
    await one.start()
    await Objects(one.store).put(Route("r", "v3"))
    await one.tick()
    assert (one.rollout.phase, one.rollout.reason) == (Phase.ABORTED, "its route was changed meanwhile")
    assert one.known.routes["r"] == Route("r", "v3")


@pytest.mark.parametrize(
    ("route", "spec", "error", "says"),
    [
        pytest.param(Route("s", "v1"), SPEC, ObjectNotFound, "no route 'r'", id="no such route"),
        pytest.param(Route("r", "v2"), SPEC, Conflict, "has model 'v2' already", id="it has it already"),
        pytest.param(Route("r", "v1", targets=(Target("v3", 1),)), SPEC, Conflict, "targets of its own; remove them", id="targets"),
        pytest.param(Route("r", "v1"), replace(SPEC, model="none"), ModelNotFound, "'none' is not loaded", id="not loaded"),
        pytest.param(
            Route("r", "v1"),
            replace(SPEC, model="other"),
            Conflict,
            r"'other' would break callers of 'v1': output Y was FP32\[4\] and is FP32\[8\]",
            id="another contract",
        ),
        pytest.param(
            Route("r", "v1"),
            replace(SPEC, model="v1", version="2"),
            InvalidRequest,
            "must be another one than the route's own, or another version",
            id="version",
        ),
        pytest.param(Route("r", "v1"), replace(SPEC, steps=()), InvalidRequest, "there must be 1 to 20", id="no steps"),
        pytest.param(
            Route("r", "v1"), replace(SPEC, steps=steps_of([100], samples=1, min_s=0)), InvalidRequest, "steps.weight must rise", id="all"
        ),
    ],
)
async def test_what_cannot_begin(route: Route, spec: RolloutSpec, error: type[Exception], says: str) -> None:
    one = process(state=world(route))
    with pytest.raises(error, match=says):
        await one.start(spec)
    assert one.known.rollouts == {}


async def test_a_second_one_cannot_begin() -> None:
    one = process()
    await one.start()
    with pytest.raises(Conflict, match="is under way, to v2; promote or abort it first"):
        await one.start()


async def test_without_the_store_it_cannot_begin() -> None:
    one = process()
    one.store.is_away = True
    with pytest.raises(StoreUnavailable):
        await one.rollouts.start("r", SPEC)


async def test_what_is_seen_of_another_rollout_counts_for_none() -> None:
    one = process()
    await one.start()
    one.seen += [Observation("r", "0" * 32, False, number, True, 0.01) for number in range(100)]
    await one.tick(count=0)
    assert one.rollout.is_under_way
    assert one.rollouts.status(one.rollout).step_samples == 0


# Versions of one model


async def test_another_version_of_the_same_model() -> None:
    one = process(state=world(Route("r", "v1", "1")))
    await one.start(replace(SPEC, model="v1", version="2"))
    assert one.known.routes["r"].targets == (Target("v1", 100, "2"),)
    assert (await finish(one)).phase is Phase.PROMOTED
    assert one.known.stored_routes["r"] == Route("r", "v1", "2")


async def test_a_version_policy_that_keeps_only_one_is_refused_with_what_would_be_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERSIONS, "v1", ["2"])
    monkeypatch.setitem(CONFIGS, "v1", {"output": [Y], "version_policy": {"latest": {"num_versions": 1}}})
    one = process(state=world(Route("r", "v1", "1")))
    says = r"version 1 .* not loaded; loaded are: 2\. .* latest \{ num_versions: 1 \}, leaves .* specific: \{ versions: \[1, 2\] \}"
    with pytest.raises(Conflict, match=says):
        await one.start(replace(SPEC, model="v1", version="2"))


async def test_a_version_of_another_model_that_is_not_loaded_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERSIONS, "v2", ["1", "3"])
    one = process()
    with pytest.raises(ModelNotFound, match="version 7 of model 'v2' is not loaded; loaded are: 1, 3"):
        await one.start(replace(SPEC, version="7"))
    assert (await one.start(replace(SPEC, version="3"))).version == "3"


# Copies


async def test_copies_come_before_weight_and_stay_through_the_bake() -> None:
    copies = FakeCopies({"v1": 2})
    one = process(copies=copies)
    started = await one.start(replace(SPEC, bake_s=30.0))
    assert (started.phase, started.events[-1].what, started.copies) == (Phase.SHADOW, "began: v1 -> v2, its copies first", 2)
    for _ in range(3):
        await one.tick()
    assert (one.weights, copies.kept[-1]) == (("v1", 0), {"v1": 2, "v2": 1})
    copies.there["v2"] = 1
    for _ in range(12):
        await one.tick()
    assert (one.weights, copies.kept[-1]) == (("v1", 5000), {"v1": 2, "v2": 2}), "all requests want a second one"
    copies.there["v2"] = 2
    await one.tick()
    assert (one.rollout.phase, one.weights) == (Phase.BAKING, ("v2", 0))
    for _ in range(2):
        await one.tick()
    assert (one.rollout.phase, copies.kept[-1]) == (Phase.BAKING, {"v1": 2, "v2": 2})
    assert (await finish(one)).phase is Phase.PROMOTED
    await one.tick()
    assert copies.kept[-1] == {}


async def test_from_the_bake_it_is_one_step_back() -> None:
    one = process()
    await one.start(replace(SPEC, bake_s=1000.0))
    for _ in range(12):
        await one.tick()
    assert (one.rollout.phase, one.weights) == (Phase.BAKING, ("v2", 0))
    await refreshing(one, one.rollouts.change("r", lambda rollout: aborted(rollout, now_s=one.clock[0])))
    assert one.known.routes["r"] == one.known.stored_routes["r"] == Route("r", "v1")


async def test_no_room_for_both_is_an_answer_before_the_first_step() -> None:
    copies = FakeCopies({"v1": 3}, room=2)
    one = process(copies=copies)
    with pytest.raises(Conflict, match=r"there is no room for both: 3 of v2 beside \{'v1': 3\}"):
        await one.start()
    assert (one.known.rollouts, copies.kept) == ({}, []), "nothing was loaded, and nothing is kept"


async def test_while_models_are_compared_neither_goes_for_the_other() -> None:
    copies = FakeCopies({"v1": 1, "v2": 1})
    one = process(copies=copies)
    with pytest.raises(Conflict, match="would break callers"):
        await one.start(replace(SPEC, model="other"))
    assert copies.kept == [{"v1": 1, "other": 1}]
    await one.tick()
    assert copies.kept[-1] == {}


# Deaths


@pytest.mark.parametrize(("deaths", "is_back"), [(1, False), (2, True)])
async def test_one_that_kills_processes_is_rolled_back_after_the_second(deaths: int, is_back: bool) -> None:
    one = process()
    await one.start()
    for number in range(deaths):
        one.seen.append(Observation("r", one.rollout.id, False, number, True, 0.01, is_death=True))
        one.seen += [Observation("r", one.rollout.id, True, 100 * number + each + 10, True, 0.01, is_death=True) for each in range(5)]
        await one.tick(count=0, after_s=5.0)
    assert (one.rollout.phase is Phase.ROLLED_BACK) is is_back
    assert not is_back or one.rollout.reason == "deaths: 2 times a process has died under its requests"


@pytest.mark.virtual_time
async def test_a_defect_ends_nothing_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    one = process()
    await one.start()

    def broken() -> list[Observation]:
        raise RuntimeError("a defect")

    one.rollouts.sources[:] = [broken]
    running = asyncio.get_running_loop().create_task(one.rollouts.run())
    await asyncio.sleep(6.0)
    assert caplog.messages.count("rollouts are at a standstill for 5 s") == 2
    one.rollouts.sources[:] = [one._take]
    one.serve(30, faults=True)
    await asyncio.sleep(6.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await one.known.start()
    assert one.rollout.phase is Phase.ROLLED_BACK
