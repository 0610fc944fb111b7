"""How soon gateways with all of their tasks roll back, and take over from a leader that was killed, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from control_plane.core.errors import StoreUnavailable
from control_plane.fleet.leadership.election import LeaderElection
from control_plane.inference.domain.observation import Observation
from control_plane.objects.domain.rollout import Phase
from control_plane.rollout.domain.findings import Sums
from control_plane.rollout.rollouts import RolloutSpec
from tests.fakes.rollout_steps import steps_of
from tests.fakes.stores.evidence_board import FakeEvidenceBoard
from tests.fakes.stores.lease import FakeLeaseStore, FakeRecord
from tests.fakes.stores.state_store import FakeState
from tests.unit.rollout.rollout_bench import Process, process, world

pytestmark = pytest.mark.usefixtures("known_thresholds")

ROLLED_BACK_S = 2.0
TAKEN_OVER_S = 10.0
STEPS = RolloutSpec("v2", steps_of([1, 5, 10, 20, 30, 40, 50, 60, 70], samples=5, min_s=3.0))


class LoopClock(list[float]):
    """Clock of the bench that goes on by itself, as the loop's does."""

    def __getitem__(self, _: object) -> float:  # type: ignore[override]
        return asyncio.get_running_loop().time()


@dataclass
class SilentBoard(FakeEvidenceBoard):
    """Board that from some time on says nothing, until the link to it gives up after a second."""

    is_silent: bool = False

    async def claim(self, rollout: str, units: Collection[int]) -> tuple[frozenset[int], int]:
        await self._wait()
        return await super().claim(rollout, units)

    async def exchange(self, rollout: str, process: str, own: Sums | None) -> Mapping[str, Sums]:
        await self._wait()
        return await super().exchange(rollout, process, own)

    async def _wait(self) -> None:
        if self.is_silent:
            await asyncio.sleep(1.0)
            raise StoreUnavailable("it does not answer within 1 s")


@dataclass
class Gateway:
    """One gateway with its tasks, and with an election of its own."""

    rollouts: Process
    election: LeaderElection
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def run(self) -> None:
        assert self.rollouts.shared is not None
        self.rollouts.rollouts._fencing_token = lambda: self.election.token if self.election.is_leader else None
        loop = asyncio.get_running_loop()
        each = (self.rollouts.known.run(), self.rollouts.rollouts.run(), self.rollouts.shared.run(), self.election.run())
        self.tasks = [loop.create_task(task) for task in each]

    async def kill(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def serve(self, units: range, *, bad: bool = False, stable: bool = False) -> None:
        self.rollouts.seen += [Observation("r", self.rollouts.rollout.id, stable, unit, bad, 0.01) for unit in units]


@asynccontextmanager
async def gateways(count: int) -> AsyncIterator[tuple[list[Gateway], SilentBoard, FakeState]]:
    """So many of one rollout, the first of which leads."""
    state, clock, board, record = world(), LoopClock([0.0]), SilentBoard(), FakeRecord()
    made = []
    for number in range(count):
        name = f"p{number}"
        election = LeaderElection(FakeLeaseStore(record), holder=name, now_s=asyncio.get_running_loop().time)
        made.append(Gateway(process(state=state, clock=clock, board=board, name=name), election))
    await made[0].rollouts.start(STEPS)
    for each in made:
        await each.rollouts.known.start()
        each.run()
        while not made[0].election.is_leader:
            await asyncio.sleep(0.1)
    try:
        yield made, board, state
    finally:
        for each in made:
            await each.kill()


async def until(is_so: Callable[[], bool]) -> float:
    """Seconds until it is so."""
    now_s = asyncio.get_running_loop().time
    begun_s = now_s()
    while not is_so():
        await asyncio.sleep(0.01)
        assert now_s() - begun_s < 60.0, "it does not happen"
    return now_s() - begun_s


def sends_all_back(each: Gateway) -> bool:
    return each.rollouts.weights == ("v1", 0)


@pytest.mark.virtual_time
@pytest.mark.parametrize("after_s", [0.0, 0.13, 0.26, 0.39, 0.49])
async def test_all_send_their_callers_back_within_two_seconds_of_evidence_that_none_has_alone(after_s: float) -> None:
    async with gateways(4) as (all_of_them, _, _):
        await asyncio.sleep(2.0 + after_s)
        for number, each in enumerate(all_of_them):
            each.serve(range(100 * number + 50, 100 * number + 90), stable=True)
            each.serve(range(100 * number, 100 * number + 2), bad=True)
        assert await until(lambda: all(map(sends_all_back, all_of_them))) <= ROLLED_BACK_S
        assert all_of_them[0].rollouts.rollout.phase is Phase.ROLLED_BACK
        bad = all_of_them[0].rollouts.rollout.reason.removeprefix("faults: ").split()[0]
        assert int(bad) > 2, "two are what one gateway has seen"


@pytest.mark.virtual_time
@pytest.mark.parametrize("after_s", [0.0, 0.13, 0.26, 0.39, 0.49])
@pytest.mark.parametrize("is_silent", [False, True], ids=["refuses", "says nothing"])
async def test_while_the_store_is_away_a_gateway_that_finds_it_worse_sends_its_callers_back_as_soon(
    is_silent: bool, after_s: float
) -> None:
    async with gateways(2) as ((one, other), board, _):
        await asyncio.sleep(2.0 + after_s)
        board.is_silent, board.is_away = is_silent, not is_silent
        one.rollouts.store.is_away = True
        one.serve(range(50, 90), stable=True)
        one.serve(range(30), bad=True)
        assert await until(lambda: sends_all_back(one)) <= ROLLED_BACK_S
        assert not sends_all_back(other)


@pytest.mark.virtual_time
@pytest.mark.parametrize("after_s", [0.0, 0.7, 1.4, 2.1, 2.8])
async def test_another_goes_on_within_ten_seconds_of_the_leaders_death_and_repeats_no_sample(after_s: float) -> None:
    async with gateways(2) as ((leader, other), _, _):
        leader.serve(range(5))
        await until(lambda: other.rollouts.rollout.step == 1)
        await asyncio.sleep(0.6)  # what is exchanged before counts for the step before
        leader.serve(range(5, 10))  # all that step two asks for; nobody sends any more
        await asyncio.sleep(0.8 + after_s / 2)
        assert other.rollouts.rollout.step == 1
        await leader.kill()
        assert await until(lambda: other.rollouts.rollout.step == 2) <= TAKEN_OVER_S
        assert other.election.is_leader
        await asyncio.sleep(30.0)
        assert other.rollouts.rollout.step == 2, "the third step has no samples"
