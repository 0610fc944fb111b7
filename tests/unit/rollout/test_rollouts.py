from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from control_plane.core.errors import Conflict, InvalidRequest, ModelNotFound, ObjectNotFound, StoreUnavailable
from control_plane.inference.domain.observation import Observation
from control_plane.objects.domain.rollout import Phase, Rollout
from control_plane.objects.domain.route import Route, Target
from control_plane.objects.domain.stored import Kind, Stored
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.mirror import ObjectMirror
from control_plane.objects.objects import Objects
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.rollout.contracts import ContractReader
from control_plane.rollout.domain.machine import aborted, paused, promoted, resumed, steps_of
from control_plane.rollout.rollouts import Rollouts, RolloutSpec
from control_plane.triton.ports import Upstream
from tests.fakes import FakeHttp, FakeUpstream
from tests.fakes.state_store import FakeState, FakeStateStore

SPEC = RolloutSpec("v2", steps_of([1, 10, 50], samples=20, min_s=30.0))
Y = {"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}
CONFIGS: dict[str, Any] = {"v1": {"output": [Y]}, "v2": {"output": [Y]}, "other": {"output": [{**Y, "dims": [8]}]}}


class Killed(BaseException):
    """Ends the process at this point, as SIGKILL does: nothing that is written after it has happened."""


@dataclass
class MortalStore(FakeStateStore):
    """Store of a process that is killed at its n-th write, before or after that has been done."""

    kill_at: int = 10**9
    after: bool = False
    writes: int = 0

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
        self.writes += 1
        if self.writes == self.kill_at and not self.after:
            raise Killed
        stored = await super().put(kind, name, body, expected=expected)
        if self.writes == self.kill_at:
            raise Killed
        return stored


def triton(request: HttpRequest) -> HttpAnswer:
    config = CONFIGS.get(request.target.split(b"/")[3].decode())
    return make_answer(404, b"{}") if config is None else make_answer(200, json.dumps(config).encode())


@dataclass
class Process:
    """One gateway's rollouts, on a store that it shares with others."""

    state: FakeState
    clock: list[float]
    token: int | None = 0
    kill_at: int = 10**9
    after: bool = False
    seen: list[Observation] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MortalStore(self.state, kill_at=self.kill_at, after=self.after)
        self.known = ObjectMirror(self.store, now_s=lambda: self.clock[0])
        upstream = FakeUpstream(http=FakeHttp(answer=triton))

        async def reading(model: str) -> Upstream:
            return upstream

        self.rollouts = Rollouts(
            Objects(self.store), self.known, ContractReader(reading), leads=lambda: self.token, now_s=lambda: self.clock[0]
        )
        self.rollouts.sources.append(self._take)
        self.rollouts.on_given_up = self.given_up.append

    def _take(self) -> list[Observation]:
        taken, self.seen = self.seen, []
        return taken

    def serve(self, count: int, *, faults: bool = False) -> None:
        """So many requests at each arm, as far as there is a rollout."""
        for name, rollout_id in self.known.rollout_ids.items():
            for number in range(count):
                self.seen.append(Observation(name, rollout_id, True, hash((self.clock[0], number, 1)) % 2**64, False, 0.01))
                self.seen.append(Observation(name, rollout_id, False, hash((self.clock[0], number, 2)) % 2**64, faults, 0.01))

    async def tick(self, *, after_s: float = 10.0, count: int = 10, faults: bool = False) -> None:
        self.clock[0] += after_s
        await self.known.start()
        self.serve(count, faults=faults)
        await self.rollouts.tick()
        await self.known.start()

    async def start(self, spec: RolloutSpec = SPEC) -> Rollout:
        await self.known.start()
        started = (await _refreshing(self, self.rollouts.start("r", spec))).value
        assert isinstance(started, Rollout)
        await self.known.start()
        return started

    @property
    def rollout(self) -> Rollout:
        return self.known.rollouts["r"]

    @property
    def weights(self) -> tuple[str, int]:
        route = self.known.routes["r"]
        return route.model, sum(target.weight for target in route.targets)


async def _refreshing(process: Process, change: Any) -> Any:
    """Await a change while the mirror follows the store."""
    following = asyncio.get_running_loop().create_task(process.known.run())
    try:
        return await change
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def world(*routes: Route) -> FakeState:
    state = FakeState()
    for route in routes or (Route("r", "v1"),):
        state.write(Kind.ROUTE, route.name, to_body(route))
    return state


def process(**how: Any) -> Process:
    return Process(how.pop("state", None) or world(), how.pop("clock", None) or [1000.0], **how)


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


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("kill_at", range(1, 7))
async def test_after_the_leaders_death_at_any_write_another_goes_on_and_nothing_is_repeated_or_skipped(kill_at: int, after: bool) -> None:
    state, clock = world(), [1000.0]
    first = process(state=state, clock=clock, token=1)
    await first.start()
    mortal = process(state=state, clock=clock, token=1, kill_at=kill_at, after=after)
    try:
        await finish(mortal)
    except Killed:
        pass
    else:
        assert kill_at > mortal.store.writes, "there are so many writes"
    rollout = await finish(process(state=state, clock=clock, token=2))
    whats = ["began: v1 -> v2", "step 2: 10 %", "step 3: 50 %", "promoted: v2", "promoted"]
    assert [event.what for event in rollout.events] == whats
    gaps = [later.at_s - sooner.at_s for sooner, later in zip(rollout.events, rollout.events[1:4], strict=False)]
    assert all(gap >= 30.0 for gap in gaps), "no step was cut short"


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
async def test_a_leader_that_dies_while_it_rolls_back(after: bool) -> None:
    state, clock = world(), [1000.0]
    await process(state=state, clock=clock).start()
    mortal = process(state=state, clock=clock, kill_at=1, after=after)
    with pytest.raises(Killed):
        await mortal.tick(count=30, faults=True)
    other = process(state=state, clock=clock)
    await other.tick(count=30, faults=True)
    assert other.rollout.phase is Phase.ROLLED_BACK
    assert [event.what.partition(":")[0] for event in other.rollout.events] == ["began", "rolled back"]


async def test_by_hand() -> None:
    one = process()
    await one.start()
    await _refreshing(one, one.rollouts.change("r", lambda rollout: paused(rollout, now_s=one.clock[0], by="me")))
    for _ in range(10):
        await one.tick()
    assert (one.rollout.is_paused, one.rollout.step) == (True, 0)
    await _refreshing(one, one.rollouts.change("r", lambda rollout: resumed(rollout, now_s=one.clock[0])))
    await one.tick()
    assert one.rollout.step == 1
    await _refreshing(one, one.rollouts.change("r", lambda rollout: promoted(rollout, now_s=one.clock[0])))
    assert one.weights == ("v2", 0)
    assert (await finish(one)).phase is Phase.PROMOTED
    with pytest.raises(Conflict, match="cannot be aborted, it is promoted"):
        await one.rollouts.change("r", lambda rollout: aborted(rollout, now_s=one.clock[0]))


async def test_a_paused_one_is_rolled_back_all_the_same() -> None:
    one = process()
    await one.start()
    await _refreshing(one, one.rollouts.change("r", lambda rollout: paused(rollout, now_s=one.clock[0])))
    await one.tick(count=30, faults=True)
    assert one.rollout.phase is Phase.ROLLED_BACK


async def test_abort_sends_everybody_back_and_another_may_begin() -> None:
    one = process()
    first = await one.start()
    await _refreshing(one, one.rollouts.change("r", lambda rollout: aborted(rollout, now_s=one.clock[0])))
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
        pytest.param(Route("r", "v1"), replace(SPEC, model="v1", version="2"), InvalidRequest, "must have another name", id="version"),
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
