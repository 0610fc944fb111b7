"""Composes a fleet of Tritons with more models than memory: what a gateway with several Tritons runs.

It wires routing, loading, membership and leadership together and owns their background tasks; the decisions
are elsewhere. `app/` makes one, gives it its servers (`join`), calls `open` once they are up, and runs it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

from control_plane.core.endpoints import ListedServer
from control_plane.core.errors import ControlPlaneError, Overloaded, StoreUnavailable, UpstreamUnavailable
from control_plane.core.model import ModelVersion
from control_plane.fleet.administration import FleetModels
from control_plane.fleet.domain.counts import FleetCounts
from control_plane.fleet.domain.fleet import Server
from control_plane.fleet.domain.leadership.report import LoadReport, Wanted
from control_plane.fleet.leadership.election import LeaderElection
from control_plane.fleet.leadership.leader_requests import LeaderForwarding
from control_plane.fleet.leadership.reports import ReportBuilder, ReportCollector
from control_plane.fleet.leadership.stale_views import StaleViewDetector
from control_plane.fleet.loading.replica_loader import ReplicaLoader
from control_plane.fleet.loading.server_loads import ServerLoads
from control_plane.fleet.membership.draining import Drainer
from control_plane.fleet.ports import FleetMemory, FleetWorkers, LeaderChannel, ServerInstance
from control_plane.fleet.reconciler import Reconciler
from control_plane.fleet.routing.dispatch import FleetDispatcher
from control_plane.fleet.routing.model_router import ModelRouter
from control_plane.fleet.view.catalogue import FleetCatalogue
from control_plane.fleet.view.files import FleetFiles
from control_plane.fleet.view.memory import MemorySync
from control_plane.fleet.view.state import NO_BUDGET, FleetState
from control_plane.models.model_service import ALL_MODELS, LoadFailure
from control_plane.models.ports import ModelDescriptions
from control_plane.models.tiers.warm_tier_manager import WarmTierManager
from control_plane.triton.servers import Servers

_log = logging.getLogger(__name__)

_MAX_NAMED = 20
"""Models that the log names when not all could be loaded."""

FleetWorkersT = TypeVar("FleetWorkersT", bound=FleetWorkers)


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Options of a fleet, as the operator has set them."""

    budget_bytes: int | None
    """Bytes that each server has for models, unless its list says otherwise; None: no bound."""
    load_timeout_s: float
    """Time limit of one load."""
    wait_s: float
    """Longest time that requests wait for loads."""
    hedging: bool = True
    """Whether late requests go to a second server, too, where their routes do not say."""


class FleetService:
    """Facade of a fleet as one process runs it: routing, loading, membership, leader election and their
    background tasks."""

    def __init__(
        self,
        servers: Servers,
        descriptions: ModelDescriptions,
        election: LeaderElection,
        *,
        memory: FleetMemory,
        options: FleetOptions,
        tiers: WarmTierManager | None = None,
        channel: LeaderChannel | None = None,
        counts: FleetCounts | None = None,
        require_loadable: Callable[[str], None] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`channel` is given if other processes may share the fleet. `require_loadable` is that of `FleetFiles`, `now_s` the event
        loop's time.
        """
        self._budget_bytes = NO_BUDGET if options.budget_bytes is None else options.budget_bytes
        self._load_timeout_s = load_timeout_s = options.load_timeout_s
        self.state = FleetState(
            servers, budget_bytes=self._budget_bytes, counts=counts, now_s=now_s, logs=True, load_timeout_s=load_timeout_s
        )
        self._stale_views = StaleViewDetector(now_s)
        self._servers = servers
        self._election = election
        self._channel = channel
        self.tiers = tiers
        self.notes: Callable[[], Sequence[str]] = tuple
        """Returns what some servers lack, and why, a sentence each."""
        self._loads = loads = dict[str, ServerLoads]()
        self._forwarding = None if channel is None else self._make_forwarding(channel, servers)
        self._workers: FleetWorkers | None = None
        self._instances = dict[str, ServerInstance]()
        self._files = FleetFiles(
            self.state, descriptions, tiers, timeout_s=load_timeout_s, require_loadable=require_loadable, instances=self._instances
        )
        self.router = ModelRouter(
            self.state, ReplicaLoader(self.state, loads, files=self._files, leader=self._forwarding), wait_s=options.wait_s
        )
        self._drainer = Drainer(self.state, self.router.loads, is_leader=lambda: election.is_leader)
        self.dispatch = FleetDispatcher(self.router, catalogue=FleetCatalogue(self.state, servers), hedging=options.hedging, now_s=now_s)
        self._memory_sync = MemorySync(memory, self.state, is_leader=lambda: election.is_leader)
        self.models = FleetModels(
            state=self.state,
            servers=servers,
            router=self.router,
            memory=self._memory_sync,
            load_timeout_s=load_timeout_s,
        )
        self._reconciler = Reconciler(self.state, loads, self.router, self._files, is_leader=lambda: election.is_leader)

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader, which loads and unloads."""
        return self._election.is_leader

    @property
    def token(self) -> int | None:
        """Fencing token of the lease, if this process is the leader; else None."""
        return self._election.token if self._election.is_leader else None

    def require_leadership(self) -> int:
        """Return the fencing token for a call that changes models, as `LeaderElection.require`."""
        return self._election.require()

    def observe(self, name: str, index: list[ModelVersion]) -> None:
        """Take over a server's index that came without being asked for."""
        if name in self._loads:
            self._loads[name].observe(index)

    def join(self, name: str, instance: ServerInstance, *, pool: str = "", listed: ListedServer | None = None) -> None:
        """Make one of `servers` part of the fleet, before `run` or while it runs. `listed` is what the list
        of servers says of it."""
        self.state.join(Server(name, self._budget_bytes, pool, is_up=False))
        self._instances[name] = instance
        self._loads[name] = ServerLoads(
            self._servers.members[name],
            instance,
            self.state,
            require=self._election.require,
            load_timeout_s=self._load_timeout_s,
        )
        if listed is not None:
            self.change(listed)

    def change(self, listed: ListedServer) -> None:
        """Take over a server's pool, labels and budget from the list of servers."""
        budget_bytes = self._budget_bytes if listed.memory_budget is None else listed.memory_budget
        self.state.change(listed.name, pool=listed.pool, labels=dict(listed.labels), budget_bytes=budget_bytes)

    async def drain(self, name: str) -> None:
        """Drain a server: return when nothing is in flight and nothing loaded there any more, or when the
        time for that is over."""
        await self._drainer.drain(name)

    def forget(self, name: str) -> None:
        """Forget a server that has left and whose connections are closed."""
        del self._loads[name], self._instances[name]
        self._servers.remove(name)
        self.router.loads.forget(name)

    async def open(self, load: Sequence[str]) -> list[LoadFailure]:
        """Load and keep these models, with `*` as many of all as fit. What fails is returned, and the rest is
        served."""
        # A fleet of one process must have its lease first; one that is shared can have another process as its
        # leader.
        if self._forwarding is None:
            await self._election.wait_until_leader()
        await self._memory_sync.recall()
        # Before `describe`: only attached Tritons themselves can say what models they have.
        await self._reconciler.tick()
        await self._files.describe()
        await self._reconciler.tick()
        return await self._keep_all() if ALL_MODELS in load else await self._keep(load)

    async def _keep(self, models: Sequence[str]) -> list[LoadFailure]:
        """Load these models without waiting for room: a model that finds none now is loaded as soon as there
        is some."""
        failures = []
        for name in models:
            try:
                await self.models.keep(name, waits_for_room=False)
            except ControlPlaneError as exc:
                failures.append(LoadFailure(name, str(exc)))
                if isinstance(exc, Overloaded):
                    # The reconciler loads a pinned model as soon as there is room.
                    self.state.specs.pin(name, 1)
        return failures

    async def _keep_all(self) -> list[LoadFailure]:
        """Load all models, those of the highest priority first; models that find no room then are loaded when
        they are asked for."""
        facts = sorted(self.state.fleet.models.values(), key=lambda each: (-each.spec.priority, each.name))
        failures, left = [], []
        for name in [each.name for each in facts if each.name in self.state.specs.described]:
            try:
                await self.models.keep(name, waits_for_room=False)
            except Overloaded:
                left.append(name)
            except ControlPlaneError as exc:
                failures.append(LoadFailure(name, str(exc)))
        if left:
            _log.info(
                "there is no room for %d models, which are loaded when they are asked for: %s", len(left), ", ".join(left[:_MAX_NAMED])
            )
        return failures

    async def run(self) -> None:
        """Run the fleet's background tasks until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._election.run(), name="leader-election")
                tasks.create_task(self.router.loads.run(), name="replica-loads")
                tasks.create_task(self._reconciler.run(), name="reconciler")
                tasks.create_task(self._memory_sync.run(), name="fleet-memory")
                tasks.create_task(self.models.run(), name="desired-states")
                tasks.create_task(self.dispatch.hedging.run(), name="hedging")
                tasks.create_task(self.dispatch.overdue.run(), name="overdue-watch")
                if self._forwarding is not None:
                    tasks.create_task(self._forwarding.run(), name="leader-forwarding")
                    tasks.create_task(self._forwarding.poll_while_waiting(self._reconciler.poll_index), name="polling-while-waiting")
                if self._workers is not None:
                    tasks.create_task(self._workers.run(), name="fleet-for-workers")
        finally:
            # First what only the leader may write, then the lease.
            await self._memory_sync.close()
            await self._election.stop()
            if self._channel is not None:
                with suppress(StoreUnavailable):
                    await self._channel.close()

    def share_with(self, workers: Callable[[FleetState, Servers, ReportCollector], FleetWorkersT]) -> FleetWorkersT:
        """Let this process's workers take part in the fleet; `workers` makes their side of it. Call it before
        `run`."""
        self._workers = made = workers(self.state, self._servers, self._make_others())
        return made

    def _make_forwarding(self, channel: LeaderChannel, servers: Servers) -> LeaderForwarding:
        return LeaderForwarding(
            channel,
            self.state,
            own=ReportBuilder(self.state, servers, process=uuid4().hex),
            others=self._make_others(),
            is_leader=lambda: self._election.is_leader,
        )

    def _make_others(self) -> ReportCollector:
        def repair(server: str, model: str) -> None:  # the router is made after the first collector
            self.router.repair(server, model)

        return ReportCollector(self.state, self._servers, want=self._want, on_report=self._heard, repair=repair)

    def _heard(self, report: LoadReport) -> None:
        if self._workers is not None:
            self._workers.relay(report)

    def _want(self, wanted: Wanted) -> None:
        """Decide on another process's request for a model."""
        with suppress(UpstreamUnavailable):  # this process starts or stops; the other one will ask again
            self.router.request_replica(wanted)
            ready = len(self.state.fleet.ready_replicas(wanted.model))
            if wanted.model in self.state.fleet.models and self._stale_views.needs_one_more(wanted, ready):
                self._load_beside(wanted)

    def _load_beside(self, wanted: Wanted) -> None:
        """Load one more replica for a process that does not see the existing ones."""
        if not self.router.loads.is_loading(wanted.model):
            self.router.loads.load_replica(self.state.fleet.models[wanted.model], pool=wanted.pool)
