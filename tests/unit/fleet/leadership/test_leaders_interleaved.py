"""No two leaders: whatever is paused, killed, stopped, cut off or lost, memory is never promised twice and no
two loads race.

Mutants show that the test would notice: each takes out one of the rules that this rests on, and fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import ModelFacts, Server
from control_plane.fleet.domain.leadership.election import Following, Leading, LeaseRequest, after, next_request
from control_plane.fleet.domain.leadership.lease import Lease
from control_plane.fleet.leadership.election import LeaderElection
from control_plane.fleet.loading.load_plans import LoadPlans
from tests.unit.fleet.leaders import Event, Kind, Process, World, play
from tests.unit.fleet.leaders_ports import LIMITS, PLANS, Point

CALM_S = LIMITS.ttl_s + LIMITS.margin_s + 4.0
"""Time within which there is a leader again after any fault: a lost lease is waited out, and each call takes a
second at most."""

OWNER = -1


def chosen(world: World, number: int) -> Process:
    leaders = [process for process in world.processes if process.election.token is not None]
    return leaders[0] if number == OWNER and leaders else world.processes[number % len(world.processes)]


def pass_time(seconds: float) -> Event:
    return lambda world: world.run_for(seconds)


def pause(number: int, seconds: float) -> Event:
    return lambda world: chosen(world, number).pause(seconds)


def pause_at(number: int, point: Point, seconds: float) -> Event:
    def event(world: World) -> None:
        chosen(world, number).pauses_at[point] = seconds

    return event


def kill(number: int) -> Event:
    return lambda world: world.replace(chosen(world, number))


def stop(number: int) -> Event:
    def event(world: World) -> None:
        process = chosen(world, number)
        process.stop()
        world.replace(process)

    return event


def await_send(number: int) -> Event:
    """Let time pass until the process has sent Triton a call, or for a while."""

    def event(world: World) -> None:
        for _ in range(2000):
            if chosen(world, number).sends_since_s is not None:
                break
            world.run_for(0.002)
        world.run_for(0.05)

    return event


def cut_off(number: int, seconds: float) -> Event:
    """Cut one process off from the store."""

    def event(world: World) -> None:
        chosen(world, number).cut_off_until_s = world.now_s + seconds

    return event


def take_away(seconds: float) -> Event:
    """Cut all processes off from the store."""

    def event(world: World) -> None:
        world.store_is_away_until_s = world.now_s + seconds

    return event


def lose(seconds: float) -> Event:
    return lambda world: world.lose_last_writes(seconds)


NUMBERS = st.sampled_from([OWNER, 0, 1, 2])
POINTS = st.sampled_from(get_args(Point))
EVENTS = st.one_of(
    st.builds(pass_time, st.sampled_from([0.013, 0.11, 0.7, 3.0, 8.0])),
    st.builds(pause, NUMBERS, st.sampled_from([0.5, 1.5, 4.0, 7.5, 9.0, 20.0])),
    st.builds(pause_at, NUMBERS, POINTS, st.sampled_from([1.5, 4.0, 7.5, 9.0, 20.0])),
    st.builds(kill, NUMBERS),
    st.builds(stop, NUMBERS),
    st.builds(await_send, NUMBERS),
    st.builds(cut_off, NUMBERS, st.sampled_from([2.5, 7.0, 15.0])),
    st.builds(take_away, st.sampled_from([0.5, 2.5, 7.0, 15.0])),
    st.builds(lose, st.sampled_from([0.3, 1.0, 1e9])),
)
STORIES = st.tuples(st.integers(0, 2**32), st.lists(EVENTS, min_size=4, max_size=30), st.integers(2, 3))


@settings(max_examples=30)
@given(STORIES)
def test_memory_is_never_promised_twice_and_somebody_goes_on(story: tuple[int, Sequence[Event], int]) -> None:
    seed, events, processes = story
    world = World(seed, processes=processes)
    try:
        for event in (pass_time(CALM_S), *events):
            event(world)
        world.calm_down()
        world.run_for(CALM_S)
        leaders = [process for process in world.processes if process.election.is_leader]
        assert len(leaders) == 1
        loads = world.triton.loads
        world.run_for(120.0)
        assert world.triton.loads > loads
        assert not world.violations, world.violations
    finally:
        world.close()


class IgnoresOtherLoads(LoadPlans):
    def _must_wait(self, found: Server, name: str) -> bool:
        return False

    async def _await_ready(self, name: str) -> None: ...


class TakesDrainingForFree(LoadPlans):
    async def _read_index(self) -> Server:
        found = await super()._read_index()
        return replace(
            found, replicas={name: replica for name, replica in found.replicas.items() if replica.state is not ModelState.UNLOADING}
        )


class AsksOnceForAllCalls(LoadPlans):
    async def load(self, model: ModelFacts, victims: Sequence[str] = ()) -> None:
        token, require = self._require(), self._require
        self._require = lambda: token
        try:
            await super().load(model, victims)
        finally:
            self._require = require


class BelievesFromTheAnswerOn(LeaderElection):
    async def _turn(self) -> None:
        request = next_request(self._state, self._now_s(), self._limits)
        found, now_s = await self._ask(request), self._now_s()
        if found is not None and request is not LeaseRequest.READ:
            self._become(Leading(found, now_s + found.ttl_s))
        else:
            self._become(after(self._state, request, found, asked_s=now_s, now_s=now_s, limits=self._limits))


class NeverLapses(LeaderElection):
    def require(self) -> int:
        return self._state.lease.token if isinstance(self._state, Leading) else super().require()

    async def _turn(self) -> None:
        if isinstance(self._state, Leading):
            found = await self._ask(LeaseRequest.RENEW)
            self._become(Leading(found, self._now_s() + found.ttl_s) if found else Following())
        else:
            await super()._turn()


class TakesWhatIsNotThere(LeaderElection):
    async def _ask(self, request: LeaseRequest) -> Lease | None:
        if request is LeaseRequest.ACQUIRE and isinstance(self._state, Following) and self._state.seen == FREE:
            return await self._store.acquire(None, holder=self._holder, ttl_s=self._limits.ttl_s)
        found = await super()._ask(request)
        return FREE if request is LeaseRequest.READ and found is None else found


class ResumesWhateverTheStoreLost(LeaderElection):
    async def _ask(self, request: LeaseRequest) -> Lease | None:
        if request is LeaseRequest.RESUME and isinstance(self._state, Following) and self._state.had is not None:
            return await self._store.renew(self._state.had)
        return await super()._ask(request)


FREE = Lease(0, "", 0.0, is_released=True)


class ReleasesAtOnce(LeaderElection):
    async def stop(self) -> None:
        self._begun_s = float("-inf")
        await super().stop()


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        pytest.param(Kind(plans=IgnoresOtherLoads), [pass_time(30.0)], id="loads beside another's load"),
        pytest.param(Kind(plans=TakesDrainingForFree), [pass_time(60.0)], id="takes the memory of what is unloading for free"),
        pytest.param(
            Kind(plan_limits=replace(PLANS, call_visible_after_s=0.0)), [pass_time(60.0)], id="forgets calls that were not answered"
        ),
        pytest.param(
            Kind(plans=AsksOnceForAllCalls),
            [pause(OWNER, 9.0), pass_time(12.0)] * 4,
            id="checks the lease at the plan's beginning only",
        ),
        pytest.param(
            Kind(limits=replace(LIMITS, margin_s=0.0)),
            [cut_off(OWNER, 9.0), pass_time(4.0), pause_at(OWNER, "between check and send", 5.0), pass_time(12.0)] * 3,
            id="has no margin",
        ),
        pytest.param(
            Kind(election=BelievesFromTheAnswerOn),
            [pause_at(OWNER, "before the store's answer", 8.0), pass_time(12.0)] * 12,
            id="believes from the answer on",
        ),
        pytest.param(Kind(election=NeverLapses), [cut_off(OWNER, 15.0), pass_time(20.0)] * 3, id="believes until it is told otherwise"),
        pytest.param(Kind(election=TakesWhatIsNotThere), [lose(1e9), pass_time(5.0)] * 6, id="takes a lease that is not there at once"),
        pytest.param(
            Kind(election=ResumesWhateverTheStoreLost),
            [cut_off(OWNER, 10.0), pass_time(9.9), lose(5.0), pass_time(12.0)] * 6,
            id="resumes a lease in a store that has lost who took it",
        ),
        pytest.param(
            Kind(election=ReleasesAtOnce),
            [await_send(OWNER), stop(OWNER), pass_time(1.0)] * 12,
            id="releases before its last call has arrived",
        ),
    ],
)
def test_without_one_of_its_rules_it_fails(kind: Kind, events: Sequence[Event]) -> None:
    assert violated(kind, events) is not None


RARE: dict[type[LeaderElection], int] = {ReleasesAtOnce: 54}
"""Kinds that break a rule in few worlds, and a world in which they do: where the search begins."""


def violated(kind: Kind, events: Sequence[Event]) -> int | None:
    """Return the first of so many worlds in which this kind of process breaks a rule."""
    first = RARE.get(kind.election, 0)
    seeds = range(first, first + 300)
    return next((seed for seed in seeds if play(seed, [pass_time(CALM_S), *events], kind).violations), None)
