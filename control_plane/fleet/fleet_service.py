"""A fleet of Tritons with more models than memory, put together: what a gateway with several of them runs."""

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
from control_plane.fleet.administration import FleetModels
from control_plane.fleet.domain.counts import FleetCounts
from control_plane.fleet.domain.fleet import Server
from control_plane.fleet.domain.report import FleetReport, Wanted
from control_plane.fleet.loading.server_loads import ServerLoads
from control_plane.fleet.membership.draining import FleetLeaving
from control_plane.fleet.ownership.owner_requests import Asking
from control_plane.fleet.ownership.ownership import Ownership
from control_plane.fleet.ownership.reports import OthersReports, OwnReport
from control_plane.fleet.ownership.stale_views import UnseenCopies
from control_plane.fleet.ports import FleetMemory, FleetWorkers, OwnerLine
from control_plane.fleet.reconciler import Reconciler
from control_plane.fleet.routing.dispatch import FleetDispatch
from control_plane.fleet.routing.residency import Residency
from control_plane.fleet.view.catalogue import FleetCatalogue
from control_plane.fleet.view.files import FleetFiles
from control_plane.fleet.view.memory import Remembering
from control_plane.fleet.view.state import NO_BUDGET, FleetState
from control_plane.models.model_service import ALL_MODELS, LoadFailure, ModelService
from control_plane.models.ports import ModelDescriptions
from control_plane.models.tiers.model_tiers import ModelTiers
from control_plane.triton.servers import Servers

_log = logging.getLogger(__name__)

_TOLD = 20

FleetWorkersT = TypeVar("FleetWorkersT", bound=FleetWorkers)


@dataclass(frozen=True, slots=True)
class FleetUnit:
    """What belongs to one server."""

    models: ModelService
    resident_bytes: Callable[[], int | None]
    """What it holds in memory now. Reads files."""


class FleetService:
    """A fleet as one process runs it: routing, loading, membership, ownership and their background tasks."""

    def __init__(
        self,
        servers: Servers,
        descriptions: ModelDescriptions,
        ownership: Ownership,
        *,
        memory: FleetMemory,
        budget_bytes: int | None,
        wait_s: float,
        load_timeout_s: float,
        tiers: ModelTiers | None = None,
        line: OwnerLine | None = None,
        counts: FleetCounts | None = None,
        require_loadable: Callable[[str], None] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Each server has `budget_bytes` for models, or as its list says; None: no bound. Requests wait for loads for `wait_s` at most.
        `line` where other processes may have the same fleet. `require_loadable` as `FleetFiles` has it. `now_s` is the loop's time."""
        self._budget_bytes = NO_BUDGET if budget_bytes is None else budget_bytes
        self.state = FleetState(servers, budget_bytes=self._budget_bytes, counts=counts, now_s=now_s, logs=True)
        self._unseen = UnseenCopies(now_s)
        self._servers = servers
        self._load_timeout_s = load_timeout_s
        self._ownership = ownership
        self._line = line
        self.tiers = tiers
        self._loads = loads = dict[str, ServerLoads]()
        self._asking = None if line is None else self._make_asking(line, servers)
        self._workers: FleetWorkers | None = None
        self._files = FleetFiles(self.state, descriptions, tiers, timeout_s=load_timeout_s, require_loadable=require_loadable)
        ask, tell = (_nobody_else, _nobody_else) if self._asking is None else (self._asking.ask, self._asking.tell_died)
        self.residency = Residency(self.state, loads, wait_s=wait_s, files=self._files, ask_owner=ask, tell_owner=tell)
        self._leaving = FleetLeaving(self.state, self.residency.loads, is_owner=lambda: ownership.is_owner)
        self.dispatch = FleetDispatch(self.residency, catalogue=FleetCatalogue(self.state, servers), now_s=now_s)
        self._remembering = Remembering(memory, self.state, is_owner=lambda: ownership.is_owner)
        self.models = FleetModels(
            state=self.state,
            servers=servers,
            residency=self.residency,
            remembering=self._remembering,
            load_timeout_s=load_timeout_s,
        )
        self._reconciler = Reconciler(self.state, loads, self.residency, self._files, is_owner=lambda: ownership.is_owner)

    @property
    def is_owner(self) -> bool:
        """Whether this process is the one that loads and unloads."""
        return self._ownership.is_owner

    def join(self, name: str, unit: FleetUnit, *, pool: str = "", listed: ListedServer | None = None) -> None:
        """One of `servers` belongs to the fleet from now on; before `run`, or while it runs. `listed` is what its list says of it."""
        self.state.join(Server(name, self._budget_bytes, pool, is_up=False))
        self._loads[name] = ServerLoads(
            self._servers.members[name],
            unit.models,
            self.state,
            require=self._ownership.require,
            resident_bytes=unit.resident_bytes,
            load_timeout_s=self._load_timeout_s,
        )
        if listed is not None:
            self.change(listed)

    def change(self, listed: ListedServer) -> None:
        """Its pool, labels and budget are these from now on; what is there stays until something else is wanted."""
        server = self.state.fleet.servers[listed.name]
        server.pool, server.labels = listed.pool, dict(listed.labels)
        server.budget_bytes = self._budget_bytes if listed.memory_budget is None else listed.memory_budget
        self.state.join(server)  # in its pool
        self.state.changed()

    async def see_off(self, name: str) -> None:
        """Return when nothing is under way on that server any more, and nothing is loaded there, or the time for that is over."""
        await self._leaving.see_off(name)

    def forget(self, name: str) -> None:
        """That server has left, and its connections are closed."""
        del self._loads[name]
        self._servers.remove(name)
        self.residency.forget(name)

    async def open(self, load: Sequence[str]) -> list[LoadFailure]:
        """Load and keep these, `*` for as many of all as fit; what fails is told, and the rest is served."""
        if self._asking is None:
            await self._ownership.wait_until_owner()
        await self._remembering.recall()
        await self._reconciler.tick()  # what Tritons that others run have, only they can say
        await self._files.describe()
        await self._reconciler.tick()
        return await self._keep_all() if ALL_MODELS in load else await self._keep(load)

    async def _keep(self, models: Sequence[str]) -> list[LoadFailure]:
        """Nobody waits for room: what finds none now is loaded as soon as there is some."""
        failures = []
        for name in models:
            try:
                await self.models.keep(name, waits_for_room=False)
            except ControlPlaneError as exc:
                failures.append(LoadFailure(name, str(exc)))
                if isinstance(exc, Overloaded):
                    self.state.pin(name, 1)
        return failures

    async def _keep_all(self) -> list[LoadFailure]:
        """What matters most first; what then finds no room is loaded when it is asked for."""
        facts = sorted(self.state.fleet.models.values(), key=lambda each: (-each.spec.priority, each.name))
        failures, left = [], []
        for name in [each.name for each in facts if each.name in self.state.described]:
            try:
                await self.models.keep(name, waits_for_room=False)
            except Overloaded:
                left.append(name)
            except ControlPlaneError as exc:
                failures.append(LoadFailure(name, str(exc)))
        if left:
            _log.info("there is no room for %d models, which are loaded when they are asked for: %s", len(left), ", ".join(left[:_TOLD]))
        return failures

    async def run(self) -> None:
        """Keep it as it should be until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ownership.run(), name="ownership")
                tasks.create_task(self.residency.loads.run(), name="residency")
                tasks.create_task(self._reconciler.run(), name="reconciler")
                tasks.create_task(self._remembering.run(), name="fleet-memory")
                tasks.create_task(self.models.run(), name="wishes")
                if self._asking is not None:
                    tasks.create_task(self._asking.run(), name="asking-the-owner")
                    tasks.create_task(self._asking.look_while_waiting(self._reconciler.look), name="looking-while-waiting")
                if self._workers is not None:
                    tasks.create_task(self._workers.run(), name="fleet-for-workers")
        finally:
            await self._remembering.close()
            await self._ownership.stop()
            if self._line is not None:
                with suppress(StoreUnavailable):
                    await self._line.close()

    def share_with(self, workers: Callable[[FleetState, Servers, OthersReports], FleetWorkersT]) -> FleetWorkersT:
        """Have this process's workers take part in it, by what `workers` makes of it; before `run`."""
        self._workers = made = workers(self.state, self._servers, self._make_others())
        return made

    def _make_asking(self, line: OwnerLine, servers: Servers) -> Asking:
        return Asking(
            line,
            self.state,
            own=OwnReport(self.state, servers, process=uuid4().hex),
            others=self._make_others(),
            is_owner=lambda: self._ownership.is_owner,
        )

    def _make_others(self) -> OthersReports:
        def revive(server: str, model: str) -> None:
            self.residency.revive(server, model)

        return OthersReports(self.state, self._servers, want=self._want, on_report=self._heard, revive=revive)

    def _heard(self, report: FleetReport) -> None:
        if self._workers is not None:
            self._workers.relay(report)

    def _want(self, wanted: Wanted) -> None:
        """Another process asks for it."""
        with suppress(UpstreamUnavailable):  # while this one starts or stops; it is asked again
            self.residency.want(wanted)
            ready = self.state.fleet.ready_copies(wanted.model)
            if wanted.model in self.state.fleet.models and self._unseen.lacks(wanted, ready):
                self._load_beside(wanted)

    def _load_beside(self, wanted: Wanted) -> None:
        """Where its requests look for it."""
        if not self.residency.loads.is_loading(wanted.model):
            self.residency.loads.bring(self.state.fleet.models[wanted.model], pool=wanted.pool)


def _nobody_else(*what: object) -> bool:
    return False
