"""Whichever gateway dies before or after whichever call to the store: the rollout goes on within 10 s, each step once.

In virtual time, with what runs in production: elections, mirrors, shared evidence and the rollouts' own loops. Between two
calls to the store a gateway does nothing that lasts, so these points are all there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from control_plane.core.errors import Conflict
from control_plane.fleet.domain.leadership.lease import Lease
from control_plane.fleet.leadership.election import LeaderElection
from control_plane.objects.domain.rollout import Phase, Rollout, Step
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.stored import Kind, Stored
from control_plane.objects.domain.stored_objects import from_stored
from control_plane.objects.objects import Objects
from control_plane.rollout.domain.machine import aborted, paused, promoted
from tests.fakes.rollout_steps import steps_of
from tests.fakes.stores.evidence_board import FakeEvidenceBoard
from tests.fakes.stores.lease import FakeLeaseStore, FakeRecord
from tests.fakes.stores.state_store import FakeState, FakeStateStore
from tests.unit.rollout.rollout_bench import SPEC, Process, process, world

pytestmark = [pytest.mark.usefixtures("known_thresholds"), pytest.mark.virtual_time]

TAKE_OVER_S = 10.0
MIN_S = 2.0
WHOLE_SPEC = replace(SPEC, steps=steps_of([5, 50], samples=20, min_s=MIN_S), shadow=Step(1000, 20, MIN_S), bake_s=MIN_S)
TOLD = [
    "began: v1 -> v2, shadow first",
    "step 1: 5 %",
    "step 2: 50 %",
    f"all requests, for {MIN_S:g} s beside v1",
    "promoted: v2",
    "promoted",
]
FORWARD = ("get rollout", "put rollout") * 4 + ("get route", "put route", "get rollout", "put rollout")
"""Calls of the gateway that leads, from the shadow's end to the promotion's."""
BACK = ("get rollout", "put rollout")
START = ("get route", "get rollout", "put rollout")
CHANGE = ("get rollout", "put rollout")
before_and_after = pytest.mark.parametrize("is_after", [pytest.param(False, id="before"), pytest.param(True, id="after")])


class Killed(BaseException):
    """Ends a gateway at this point, as SIGKILL does: nothing that is written after it has happened."""


@dataclass
class Fate:
    """What a gateway's rollouts ask of the store, and when that kills it."""

    at: int = 0
    is_after: bool = False
    made: list[str] = field(default_factory=list)
    died_s: float | None = None

    def meet(self, call: str, *, is_after: bool) -> None:
        if not is_after:
            self.made.append(call)
        if len(self.made) == self.at and self.is_after == is_after:
            self.died_s = asyncio.get_running_loop().time()
            raise Killed


@dataclass
class FatedStore(FakeStateStore):
    """State store by which its gateway dies."""

    fate: Fate = field(default_factory=Fate)
    written: list[Stored] = field(default_factory=list)

    async def get(self, kind: Kind, name: str) -> Stored | None:
        self.fate.meet(f"get {kind}", is_after=False)
        found = await super().get(kind, name)
        self.fate.meet(f"get {kind}", is_after=True)
        return found

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
        self.fate.meet(f"put {kind}", is_after=False)
        stored = await FakeStateStore(self.state).put(kind, name, body, expected=expected)
        self.written.append(stored)
        self.fate.meet(f"put {kind}", is_after=True)
        return stored


class Scene:
    """Gateways on one store, under a load that each of them serves a part of."""

    def __init__(self) -> None:
        self.state: FakeState = world(Route("r", "v1", is_repeatable=True))
        self.record = FakeRecord(Lease(0, "before", 6.0, is_released=True))
        self.board = FakeEvidenceBoard()
        self.written: list[Stored] = []
        self.faults = False

    @asynccontextmanager
    async def gateway(self, name: str, fate: Fate | None = None) -> AsyncIterator[Process]:
        """A gateway that runs until the end of the block, or until it is killed; then all that it does ends at once."""
        clock = asyncio.get_running_loop().time
        one = process(state=self.state, clock=Now([0.0]), board=self.board, name=name)
        one.rollouts._objects = Objects(FatedStore(self.state, fate=fate or Fate(), written=self.written))
        election = LeaderElection(FakeLeaseStore(self.record), holder=name, now_s=clock)
        one.rollouts._fencing_token = lambda: election.token
        assert one.shared is not None
        await one.known.start()
        running = asyncio.get_running_loop().create_task(
            self._live(one.known.run, election.run, one.shared.run, one.rollouts.run, lambda: self._load(one))
        )
        try:
            yield one
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _live(self, *parts: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in parts:
                    tasks.create_task(part())
        except* Killed:
            pass

    async def _load(self, one: Process) -> None:
        while True:
            await asyncio.sleep(0.1)
            one.serve(5, faults=self.faults)
            one.pair(5, faults=self.faults, differs=None)

    @property
    def rollout(self) -> Rollout:
        return read(self.state.objects[Kind.ROLLOUT, "r"])

    async def until_over(self) -> Rollout:
        async with asyncio.timeout(120.0):
            while (Kind.ROLLOUT, "r") not in self.state.objects or self.rollout.is_under_way:
                await asyncio.sleep(0.05)
        return self.rollout


class Now(list[float]):
    """The bench's clock, which is the loop's here."""

    def __getitem__(self, _: Any) -> Any:
        return asyncio.get_running_loop().time()


def read(stored: Stored) -> Rollout:
    found = from_stored(stored)
    assert isinstance(found, Rollout)
    return found


async def starting(one: Process) -> None:
    await one.rollouts.start("r", WHOLE_SPEC)


@pytest.mark.parametrize(("faults", "expected"), [(False, FORWARD), (True, BACK)], ids=["forward", "back"])
async def test_a_leader_makes_these_calls(faults: bool, expected: tuple[str, ...]) -> None:
    """The matrices below kill at each of them; a call that is added is killed at, too."""
    scene, fate = Scene(), Fate()
    async with scene.gateway("one", fate) as one:
        await starting(one)
        scene.faults = faults
        await scene.until_over()
    assert tuple(fate.made[: len(START)]) == START
    assert tuple(fate.made[len(START) :]) == expected


@before_and_after
@pytest.mark.parametrize("at", range(1, len(FORWARD) + 1))
async def test_when_the_leader_dies_another_goes_on_and_nothing_is_repeated_or_skipped(at: int, is_after: bool) -> None:
    scene, fate = Scene(), Fate(len(START) + at, is_after)
    async with scene.gateway("mortal", fate) as mortal, scene.gateway("other"):
        await starting(mortal)
        ended = await scene.until_over()

    assert fate.died_s is not None
    assert ended.phase is Phase.PROMOTED
    assert [event.what for event in ended.events] == TOLD
    assert all(later.at_s - sooner.at_s >= MIN_S for sooner, later in pairwise(ended.events[:5])), "no stage was cut short"
    following = [event for event in ended.events if event.at_s > fate.died_s]
    assert not following or following[0].at_s - fate.died_s <= TAKE_OVER_S
    routes = [stored.body for stored in scene.written if stored.kind is Kind.ROUTE]
    assert [body["model"] for body in routes if body is not None] == ["v2"], "written once"
    stages = [(each.phase, each.step) for each in map(read, (stored for stored in scene.written if stored.kind is Kind.ROLLOUT))]
    assert len(stages) == len(set(stages)) == len(TOLD)
    tokens = [read(stored).token for stored in scene.written if stored.kind is Kind.ROLLOUT]
    assert tokens == sorted(tokens)


@before_and_after
@pytest.mark.parametrize("at", range(1, len(BACK) + 1))
async def test_when_a_gateway_dies_that_rolls_back_another_does(at: int, is_after: bool) -> None:
    scene, fate = Scene(), Fate(len(START) + at, is_after)
    async with scene.gateway("mortal", fate) as mortal, scene.gateway("other"):
        await starting(mortal)
        scene.faults = True
        ended = await scene.until_over()
        await asyncio.sleep(2 * TAKE_OVER_S)

    assert scene.rollout == ended, "whoever leads next changes nothing any more"
    assert ended.phase is Phase.ROLLED_BACK
    assert [event.what.partition(":")[0] for event in ended.events] == ["began", "rolled back"]
    assert [stored for stored in scene.written if stored.kind is Kind.ROUTE] == []
    if fate.died_s is not None:  # the other one may have been first, in which case nobody died
        assert ended.events[-1].at_s - fate.died_s <= 2.0


@before_and_after
@pytest.mark.parametrize("at", range(1, len(START) + 1))
async def test_of_a_start_that_was_cut_off_there_is_one_rollout_for_who_asks_again(at: int, is_after: bool) -> None:
    scene = Scene()
    async with scene.gateway("other") as other:
        async with scene.gateway("mortal", Fate(at, is_after)) as mortal:
            with pytest.raises(Killed):
                await starting(mortal)
        if (at, is_after) == (len(START), True):
            with pytest.raises(Conflict, match="is under way, to v2"):
                await starting(other)
        else:
            await starting(other)
        ended = await scene.until_over()

    assert [event.what for event in ended.events] == TOLD


@before_and_after
@pytest.mark.parametrize("at", range(1, len(CHANGE) + 1))
@pytest.mark.parametrize(
    ("change", "told", "phase"),
    [
        pytest.param(paused, "paused", Phase.SHADOW, id="pause"),
        pytest.param(promoted, "promoted: v2", Phase.PROMOTED, id="promote"),
        pytest.param(aborted, "aborted: by hand", Phase.ABORTED, id="abort"),
    ],
)
async def test_a_change_by_hand_that_was_cut_off_is_done_or_not_and_may_be_asked_for_again(
    at: int, is_after: bool, change: Any, told: str, phase: Phase
) -> None:
    scene, fate = Scene(), Fate()
    async with scene.gateway("other") as other:
        await starting(other)
        async with scene.gateway("mortal", fate) as mortal:
            fate.at, fate.is_after = len(fate.made) + at, is_after
            by_hand = lambda rollout: change(rollout, now_s=asyncio.get_running_loop().time())  # noqa: E731
            with pytest.raises(Killed):
                await mortal.rollouts.change("r", by_hand)
        is_done = (at, is_after) == (len(CHANGE), True)
        assert (told in [event.what for event in scene.rollout.events]) == is_done
        if not is_done:
            await other.rollouts.change("r", by_hand)
        await asyncio.sleep(TAKE_OVER_S)

    assert [event.what for event in scene.rollout.events].count(told) == 1
    assert scene.rollout.phase is phase
