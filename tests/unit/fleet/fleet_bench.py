"""Test bench of a whole fleet in virtual time: the real services, over fake Tritons whose loads and unloads
take as long as a test says.

A fake Triton counts the memory that is really taken, not what the fleet's view says, and records every
violation of the budget.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed, UpstreamUnavailable
from control_plane.core.held_memory import HeldMemory
from control_plane.core.infer_call import InferCall
from control_plane.core.model import ModelOverride, ModelState
from control_plane.fleet.adapters.own_instance import OwnInstance
from control_plane.fleet.administration import FleetModels
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import Replica, Server
from control_plane.fleet.loading.replica_loader import ReplicaLoader
from control_plane.fleet.loading.server_loads import ServerLoads
from control_plane.fleet.ports import FleetMemory
from control_plane.fleet.reconciler import Reconciler
from control_plane.fleet.routing.dispatch import FleetDispatcher
from control_plane.fleet.routing.model_router import ModelRouter
from control_plane.fleet.view.files import FleetFiles
from control_plane.fleet.view.memory import MemorySync
from control_plane.fleet.view.reservations import Reservation
from control_plane.fleet.view.state import FleetState
from control_plane.models.domain.description import DescribedModel, ModelSpec, Tier
from control_plane.models.model_service import ModelService
from control_plane.triton.servers import Servers
from tests.fakes import FakeControl, FakeUpstream
from tests.fakes.stores.fleet_memory import FakeFleetMemory

T = TypeVar("T")
READY, LOADING, UNLOADING = ModelState.READY, ModelState.LOADING, ModelState.UNLOADING
WAIT_S = 30.0


@dataclass
class TimedControl(FakeControl):
    """Fake Triton in which loads and unloads take time; what has begun goes on even if its caller is
    cancelled."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    budget_bytes: int = 100
    load_s: dict[str, float] = field(default_factory=dict)
    """Load times; models that are not in here take one second."""
    drain_s: float = 0.2
    steps: dict[str, list[str]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    """Models whose stubs have died. Like Triton 24.10 it goes on listing them as READY, without memory, and
    never ends their unload."""

    async def load(self, name: str, *, override: ModelOverride | None = None, timeout_s: float) -> None:
        if not self.live:
            raise UpstreamUnavailable("connection refused")
        self.said.append(f"load {name}")
        self.loads.append(name)
        self.overrides[name] = override
        ended: asyncio.Future[ControlPlaneError | None] = asyncio.get_running_loop().create_future()
        for each in (name, *self.steps.get(name, [])):
            self.states[each] = LOADING
            self.dead.discard(each)
        self._check()
        asyncio.get_running_loop().call_later(self.load_s.get(name, 1.0), self._end, name, ended)
        if not (await asyncio.wait([ended], timeout=timeout_s))[0]:
            raise DeadlineExceeded(f"the load of {name} takes too long")  # it goes on, as in Triton
        if (error := ended.result()) is not None:
            raise error

    async def unload(self, name: str, *, unload_dependents: bool = False, timeout_s: float) -> None:
        if not self.live:
            raise UpstreamUnavailable("connection refused")
        self.said.append(f"unload {name}")
        self.unloads.append(name)
        for each in (name, *(self.steps.get(name, []) if unload_dependents else [])):
            if self.states.get(each) is READY:
                self.states[each] = UNLOADING
                if each not in self.dead:
                    asyncio.get_running_loop().call_later(self.drain_s, self._drained, each)

    def die(self) -> None:
        """Crash with everything that was loaded; loads under way fail."""
        self.live = False
        self.states.clear()

    def _end(self, name: str, ended: asyncio.Future[ControlPlaneError | None]) -> None:
        error = self.failures.get(name)
        if self.states.get(name) is not LOADING:
            error = UpstreamUnavailable("connection lost")
        else:
            for each in (name, *self.steps.get(name, [])):
                self.states[each] = READY
                if error is not None:
                    del self.states[each]
        if not ended.done():
            ended.set_result(error)

    def _drained(self, name: str) -> None:
        if self.states.get(name) is UNLOADING:
            del self.states[name]

    def _check(self) -> None:
        own = {step for name in self.states for step in self.steps.get(name, [])}
        held = sum(self.sizes.get(name, 0) for name in self.states if name not in own | self.dead)
        if held > self.budget_bytes:
            self.violations.append(f"{held} held by {self.states}")
        loading = [name for name, state in self.states.items() if state is LOADING and name not in own]
        if len(loading) > 1:
            self.violations.append(f"{loading} load at once")


def model(
    name: str,
    size: int = 40,
    *,
    steps: frozenset[str] = frozenset(),
    min_replicas: int = 0,
    max_replicas: int | None = None,
    holds: bool = False,
) -> DescribedModel:
    """Describe a model; with `holds` its replicas hold the state of sequences."""
    spec = ModelSpec(name, size, min_replicas=min_replicas, max_replicas=max_replicas)
    return DescribedModel(spec, file_bytes=size, steps=steps, has_sequences=holds)


@dataclass
class FakeDescriptions:
    """`models/ports.ModelDescriptions` over a dictionary."""

    models: dict[str, DescribedModel]

    cold: set[str] = field(default_factory=set)

    def read(self) -> dict[str, DescribedModel]:
        return {name: described for name, described in self.models.items() if name not in self.cold}


@dataclass
class FakeTiers:
    """The part of `models/tiers/warm_tier_manager.WarmTierManager` that a fleet needs: models in `cold` take a while to
    fetch."""

    described: FakeDescriptions
    fetch_s: float = 10.0
    verify_s: float = 0.0
    """How long it takes to verify what is warm, each time."""
    failures: dict[str, ControlPlaneError] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    pins: Counter[str] = field(default_factory=Counter)
    ends_s: dict[str, float] = field(default_factory=dict)

    def names(self) -> list[str]:
        return sorted(self.described.models)

    def tier_of(self, model: str) -> Tier:
        return Tier.COLD if model in self.described.cold else Tier.WARM

    def expected_fetch_s(self, model: str) -> float:
        if self.tier_of(model) is Tier.WARM:
            return 0.0
        return max(0.0, self.ends_s[model] - asyncio.get_running_loop().time()) if model in self.ends_s else self.fetch_s

    async def ensure_warm(self, model: str, *, deadline_s: float) -> None:
        if model in self.described.cold:
            self.fetched.append(model)
            self.ends_s[model] = asyncio.get_running_loop().time() + self.fetch_s
            await asyncio.sleep(self.fetch_s)
            del self.ends_s[model]
            if model in self.failures:
                raise self.failures[model]
            self.described.cold.discard(model)
        elif self.verify_s:
            await asyncio.sleep(self.verify_s)

    @contextmanager
    def pinned(self, model: str) -> Iterator[None]:
        self.pins[model] += 1
        try:
            yield
        finally:
            self.pins[model] -= 1


class FleetBench:
    """A fleet of one process, with servers of 100 bytes and models of 40 unless given; make it inside the
    event loop."""

    def __init__(
        self,
        *models: DescribedModel,
        servers: int = 1,
        budget_bytes: int = 100,
        wait_s: float = WAIT_S,
        memory: FleetMemory | None = None,
        hosts: Mapping[str, object] | None = None,
    ) -> None:
        """`hosts` are by server: `fleet/ports.ServerInstance`s, as far as models' files go; none where this machine has
        them."""
        self.now_s = asyncio.get_running_loop().time
        names = tuple(f"s{number}" for number in range(servers))
        self.described = FakeDescriptions({each.spec.name: each for each in models or [model(name) for name in "abcd"]})
        self.servers = Servers(None, names)
        now_s, today_s = self.now_s, lambda: 1e9 + self.now_s()
        self.state = FleetState(self.servers, budget_bytes=budget_bytes, now_s=now_s, today_s=today_s, load_timeout_s=300.0)
        self.state.specs.describe(self.described.models)
        sizes = {name: each.spec.resident_bytes or 0 for name, each in self.described.models.items()}
        steps = {name: sorted(each.steps) for name, each in self.described.models.items()}
        self.tritons = {name: TimedControl(sizes=sizes, budget_bytes=budget_bytes, steps=steps) for name in names}
        self.units = {
            name: ModelService(servers=self.servers.members[name], repository=None, load=[], load_timeout_s=300.0) for name in names
        }
        self.is_leader = True
        self.resident: dict[str, int | HeldMemory | None] = dict.fromkeys(names)
        """What each server holds; a number is main memory."""
        self.loads = {name: self._loads(name) for name in names}
        self.request_replica: Callable[[str, str | None], bool] = lambda model, pool: False
        self.tiers = FakeTiers(self.described)
        self.unloadable: dict[str, str] = {}
        """Model -> why its files show that no server could load it."""
        self.files = FleetFiles(
            self.state,
            self.described,
            self.tiers if hosts is None else None,  # type: ignore[arg-type]
            timeout_s=300.0,
            require_loadable=self._require_loadable,
            instances=hosts,  # type: ignore[arg-type]
        )
        self.router = ModelRouter(
            self.state,
            ReplicaLoader(self.state, self.loads, files=self.files, leader=self),
            wait_s=wait_s,
            draw=lambda: 0.0,
        )
        self.dispatch = FleetDispatcher(self.router, now_s=self.now_s)
        self.remembering = MemorySync(memory or FakeFleetMemory(), self.state, is_leader=lambda: self.is_leader)
        self.models = FleetModels(state=self.state, servers=self.servers, router=self.router, memory=self.remembering, load_timeout_s=300.0)
        self.reconciler = Reconciler(self.state, self.loads, self.router, self.files, is_leader=lambda: self.is_leader)
        for name in names:
            self.bring_up(name)

    def request_repair(self, server: str, model: str) -> bool:
        """`replica_loader.Leader`, as which the bench asks nobody unless a test sets `request_replica`."""
        return False

    def bring_up(self, name: str) -> FakeUpstream:
        """Start an empty Triton on this server, and let the view observe it."""
        was = self.tritons[name]
        control = self.tritons[name] = TimedControl(
            sizes=was.sizes, budget_bytes=was.budget_bytes, steps=was.steps, load_s=was.load_s, said=was.said, violations=was.violations
        )
        control.drain_s, control.failures = was.drain_s, was.failures
        upstream = FakeUpstream(control=control)
        self.servers.members[name].up(upstream)
        self.state.observe(name, [])
        return upstream

    def kill(self, name: str) -> None:
        """Crash a server's Triton, and have the supervisor notice."""
        self.tritons[name].die()
        self.servers.members[name].lost("Triton has crashed")

    def server(self, name: str = "s0") -> Server:
        return self.state.fleet.servers[name]

    def replica(self, name: str, server: str = "s0") -> Replica:
        return self.server(server).replicas[name]

    @property
    def said(self) -> list[str]:
        """Loads and unloads that the Tritons were asked for, server by server."""
        return [each for triton in self.tritons.values() for each in triton.said]

    @property
    def violations(self) -> list[str]:
        return [each for triton in self.tritons.values() for each in triton.violations]

    def told(self, *kinds: FleetEventKind) -> list[tuple[str, str]]:
        return [(each.kind.value, each.model) for each in self.state.events.latest if not kinds or each.kind in kinds]

    async def claim(self, name: str, timeout_s: float = 1000.0) -> Reservation:
        return await self.router.acquire(call(name), deadline_s=self.now_s() + timeout_s)

    async def use(self, name: str, timeout_s: float = 1000.0, *, for_s: float = 0.0) -> str:
        """Send a request that takes `for_s`, and return the name of the server that served it."""
        claim = await self.claim(name, timeout_s)
        try:
            await asyncio.sleep(for_s)
        finally:
            claim.release(answered=True)
        return claim.server.name

    def _loads(self, name: str) -> ServerLoads:
        return ServerLoads(
            self.servers.members[name],
            OwnInstance(self.units[name], lambda: HeldMemory(held) if isinstance(held := self.resident[name], int) else held),
            self.state,
            require=self._require,
            load_timeout_s=300.0,
            now_s=self.now_s,
        )

    def _require_loadable(self, name: str) -> None:
        if name in self.unloadable:
            raise ModelLoadFailed(self.unloadable[name])

    def _require(self) -> int:
        if not self.is_leader:
            raise UpstreamUnavailable("this process does not load and unload the fleet's models now; try again shortly")
        return 1


def call(name: str) -> InferCall:
    return InferCall(name, "", "", ())


@asynccontextmanager
async def running(bench: FleetBench, *, reconciles: bool = False, remembers: bool = False) -> AsyncIterator[FleetBench]:
    """Context manager: within the block models can be loaded; with `reconciles` the reconciler ticks, with
    `remembers` memory is synchronised."""
    loop = asyncio.get_running_loop()
    owners = [loop.create_task(bench.router.loads.run()), *(loop.create_task(unit.run()) for unit in bench.units.values())]
    if reconciles:
        owners.append(loop.create_task(bench.reconciler.run()))
    if remembers:
        owners += [loop.create_task(bench.remembering.run()), loop.create_task(bench.models.run())]
    await asyncio.sleep(0)
    try:
        yield bench
        assert not bench.violations
        assert not [owner for owner in owners if owner.done()], "a task of the gateway's has ended"
    finally:
        for owner in owners:
            owner.cancel()
        for ended in await asyncio.gather(*owners, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
