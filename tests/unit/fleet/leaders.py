"""Deterministic simulation of processes that share a fleet of one server: the real `LeaderElection` and
`LoadPlans`, in virtual time, with an event loop for each process.

The loop of a paused process does not run, while messages on the wire arrive all the same. `UpstreamClient` counts
memory and loads as they are, not as its index shows them, and records every violation.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar, cast

from control_plane.core.errors import ControlPlaneError, ModelLoadFailed
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.fleet import ModelFacts, Server
from control_plane.fleet.domain.leadership.election import LeaseLimits
from control_plane.fleet.domain.leadership.lease import Lease
from control_plane.fleet.domain.placement.load_plan import states_of
from control_plane.fleet.leadership.election import LeaderElection
from control_plane.fleet.loading.load_plans import LoadPlans, PlanLimits
from control_plane.models.domain.description import ModelSpec
from control_plane.triton.ports import ModelControl
from tests.fakes.stores.lease import FakeRecord
from tests.fakes.triton.server_models import PlainModels
from tests.unit.fleet.leaders_ports import LIMITS, PLANS, STORE_TIMEOUT_S, Control, Point, Store
from tests.unit.fleet.stepped_loop import SteppedLoop

T = TypeVar("T")

BUDGET = 10
BYTES = {"a": 4, "b": 4, "c": 4, "d": 3, "e": 6}
HANGS_S = 90.0
"""Duration of a load that hangs: it is given up long before it ends, and its memory is taken all that
time."""
ON_ITS_WAY_S = 0.7
"""The longest time from when a call is sent until Triton's index shows it."""


@dataclass(frozen=True)
class Kind:
    """Implementation that the processes run; a mutant replaces one part by one that breaks a rule."""

    election: type[LeaderElection] = LeaderElection
    plans: type[LoadPlans] = LoadPlans
    limits: LeaseLimits = LIMITS
    plan_limits: PlanLimits = PLANS


class World:
    """The whole simulation: clock, network, store, Triton and processes. `run_for` lets time pass."""

    def __init__(self, seed: int, kind: Kind | None = None, *, processes: int = 2) -> None:
        self.random = random.Random(seed)
        self.kind = kind or Kind()
        self.now_s = 0.0
        self.record = FakeRecord()
        self.store_is_away_until_s = 0.0
        self.triton = UpstreamClient(self)
        self.violations: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._earlier: list[tuple[float, Lease | None]] = [(0.0, None)]
        self.processes = [Process(self, next(self._numbers)) for _ in range(processes)]

    def at(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._numbers), what))

    def run_for(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while True:
            nexts = [process.run() for process in self.processes]
            self._remember()
            self.now_s = min([end_s, *nexts, *(event[0] for event in self._events[:1])])
            while self._events and self._events[0][0] <= self.now_s:
                heapq.heappop(self._events)[2]()
            if self.now_s >= end_s:
                return

    def lose_last_writes(self, seconds: float) -> None:
        """Take the store back to its state some seconds ago, as after a crash; if it is not that old, empty
        it."""
        kept = [entry for entry in self._earlier if entry[0] <= self.now_s - seconds]
        self.record.lease = kept[-1][1] if kept else None
        self.record.run = f"run {next(self._numbers)}"

    def replace(self, process: Process) -> None:
        """End a process, and start another in its place."""
        process.end()
        self.processes[self.processes.index(process)] = Process(self, next(self._numbers))

    def calm_down(self) -> None:
        """Let time pass until all processes run again and reach the store."""
        for process in self.processes:
            process.pauses_at.clear()
        until_s = [self.store_is_away_until_s]
        for process in self.processes:
            until_s += [process.paused_until_s, process.cut_off_until_s]
        self.run_for(max(0.0, max(until_s) - self.now_s))

    def close(self) -> None:
        for process in self.processes:
            process.end()

    def _remember(self) -> None:
        if self._earlier[-1][1] != self.record.lease:
            self._earlier.append((self.now_s, self.record.lease))


@dataclass
class Resident:
    """A model in Triton's memory, whatever the index shows."""

    name: str
    state: ModelState
    began_s: float
    visible_s: float
    ended: list[Callable[[Exception | None], None]] = field(default_factory=list)


class UpstreamClient:
    """Model of server 24.10: an unload is answered at once and drains, a load meanwhile begins beside it, and
    no call can be taken back."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.residents: list[Resident] = []
        self.loads = 0

    def index(self) -> list[ModelVersion]:
        now_s = self._world.now_s
        return [ModelVersion(each.name, "1", each.state, "") for each in self.residents if each.visible_s <= now_s]

    def load(self, name: str, ended: Callable[[Exception | None], None]) -> None:
        now = next((each for each in self.residents if each.name == name and each.state is not ModelState.UNLOADING), None)
        if now is not None and now.state is ModelState.LOADING:
            now.ended.append(ended)
        elif now is not None:
            ended(None)
        else:
            self._begin(name, ended)

    def unload(self, name: str) -> None:
        for each in self.residents:
            if each.name == name and each.state is ModelState.READY:
                each.state = ModelState.UNLOADING
                self._world.at(
                    self._world.random.choice((0.001, 0.001, 0.3, 0.3, 3.0, 12.0)), lambda gone=each: self.residents.remove(gone)
                )  # type: ignore[misc]

    def _begin(self, name: str, ended: Callable[[Exception | None], None]) -> None:
        world = self._world
        resident = Resident(name, ModelState.LOADING, world.now_s, world.now_s + world.random.choice((0.0, 0.05, 0.5)), [ended])
        self.residents.append(resident)
        self.loads += 1
        takes_s = HANGS_S if world.random.random() < 0.02 else world.random.choice((0.05, 0.05, 0.5, 0.5, 2.0, 2.0, 15.0))
        world.at(takes_s, lambda: self._end(resident, fails=takes_s == HANGS_S or world.random.random() < 0.1))
        held = sum(BYTES[each.name] for each in self.residents)
        # Who asked counts from then on, and its call may be on its way for up to twice the margin: a load that hangs is
        # given up that much earlier by Triton's count.
        given_up_s = PLANS.load_timeout_s - 2 * LIMITS.margin_s
        young = [each.name for each in self.residents if world.now_s - each.began_s < given_up_s]
        loading = [each.name for each in self.residents if each.state is ModelState.LOADING and each.name in young]
        if held > BUDGET:
            world.violations.append(
                f"{world.now_s:.2f}: {held} of {BUDGET} held by {[(each.name, each.state.name) for each in self.residents]}"
            )
        if len(loading) > 1:
            world.violations.append(f"{world.now_s:.2f}: {loading} load at once")

    def _end(self, resident: Resident, *, fails: bool) -> None:
        resident.visible_s = min(resident.visible_s, self._world.now_s)
        if fails:
            self.residents.remove(resident)
        else:
            resident.state = ModelState.READY
        for ended in resident.ended:
            ended(ModelLoadFailed("it fails") if fails else None)


class Process:
    """A gateway that wants one model after the other, and gives some of them up."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.paused_until_s = 0.0
        self.sends_since_s: float | None = None
        """Since when a call to Triton has passed its check and waits to be sent; None if there is none."""
        self.cut_off_until_s = 0.0
        """Until when the process cannot reach the store."""
        self.pauses_at: dict[Point, float] = {}
        """Where the process is to be paused, once, and for how long."""
        self._loop = SteppedLoop(lambda: world.now_s)
        self._loop.set_exception_handler(lambda loop, context: world.violations.append(str(context)))
        rate, offset_s = 1 + world.random.uniform(-1e-3, 1e-3), world.random.uniform(0, 1e6)

        def now_s() -> float:
            return offset_s + world.now_s * rate

        kind = world.kind
        self.election = kind.election(Store(self), holder=f"p{number}", limits=kind.limits, now_s=now_s)
        self._plans = kind.plans(
            Server("triton", BUDGET),
            cast("ModelControl", Control(self)),
            PlainModels(Control(self).load, Control(self).unload),
            require=self.election.require,
            bytes_of=BYTES.__getitem__,
            limits=kind.plan_limits,
            now_s=now_s,
        )
        self._main = self._loop.create_task(self._work_and_own())

    def run(self) -> float:
        """Run everything that is due now; return when the process has more to do."""
        if self.paused_until_s > self.world.now_s:
            return self.paused_until_s
        return self._loop.run_now()

    def pause(self, seconds: float) -> None:
        """Pause the process as SIGSTOP does. Between the check of a call and its sending the pause stays
        within what the margin covers: no lease covers more."""
        if self.sends_since_s is not None:
            seconds = min(seconds, self.sends_since_s + 2 * LIMITS.margin_s - ON_ITS_WAY_S - self.world.now_s)
        self.paused_until_s = max(self.paused_until_s, self.world.now_s + seconds)

    def come_to(self, point: Point) -> None:
        self.pause(self.pauses_at.pop(point, 0.0))

    def stop(self) -> None:
        """Stop the process as Ctrl-C does: its work is cancelled, then the lease is given back."""
        self.paused_until_s = 0.0
        self.pauses_at.clear()
        self._main.cancel()
        self._loop.run_now()
        leaving = self._loop.create_task(self.election.stop())
        self.world.run_for(2 * STORE_TIMEOUT_S)
        assert leaving.done()

    def end(self) -> None:
        """Kill the process; what it has sent still arrives."""
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_now()
        self._loop.close()

    async def calling(self, work: Callable[[], T], point: Point | None = None) -> T:
        """Send a call, and return what `work` returns on its arrival; the process may be paused before it
        gets the answer."""
        await asyncio.sleep(self._delay_s())
        answer: asyncio.Future[T] = self._loop.create_future()
        self.world.at(self._delay_s(), lambda: self._answer(answer, work()))
        if point is not None:
            self.come_to(point)
        return await answer

    def sender(self, answer: asyncio.Future[T]) -> Callable[[T], None]:
        return lambda value: self._answer(answer, value)

    async def leave(self, what: Callable[[], None]) -> None:
        """Send a call that has passed its check, which takes a moment."""
        self.sends_since_s = self.world.now_s
        self.come_to("between check and send")
        try:
            await asyncio.sleep(self._delay_s())
            self.world.at(self._delay_s(), what)
        finally:
            self.sends_since_s = None

    def _answer(self, answer: asyncio.Future[T], value: T) -> None:
        def arrive() -> None:
            if not answer.done() and not self._loop.is_closed():
                answer.set_result(value)

        self.world.at(self._delay_s(), arrive)

    def _delay_s(self) -> float:
        return self.world.random.choice((0.001, 0.001, 0.01, 0.1))

    async def _work_and_own(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.election.run())
            tasks.create_task(self._work())

    async def _work(self) -> None:
        choose = self.world.random
        while True:
            await self.election.wait_until_leader()
            name, patience_s = choose.choice(list(BYTES)), choose.choice((0.02, 0.2, 1.0, 60.0))
            try:
                async with asyncio.timeout(patience_s):
                    await self._bring(name)
            except (TimeoutError, ControlPlaneError):
                await asyncio.sleep(choose.choice((0.01, 0.5)))

    async def _bring(self, name: str) -> None:
        states = states_of(await Control(self).index())
        ready = [each for each, state in states.items() if state is ModelState.READY and each != name]
        self.world.random.shuffle(ready)
        held, victims = sum(BYTES[each] for each in states), []
        while ready and held + BYTES[name] > BUDGET:
            victims.append(ready.pop())
            held -= BYTES[victims[-1]]
        await self._plans.load(facts(name), victims)


def facts(name: str, size: int | None = None) -> ModelFacts:
    return ModelFacts(ModelSpec(name), size if size is not None else BYTES[name], load_s=1.0, service_s=0.01)


Event = Callable[[World], None]


def play(seed: int, events: Sequence[Event], kind: Kind | None = None) -> World:
    """Run these events in a new world, and return the world; events that let time pass give the others their
    time."""
    world = World(seed, kind, processes=2)
    try:
        for event in events:
            event(world)
    finally:
        world.close()
    return world
