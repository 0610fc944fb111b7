"""A worker process's part in a fleet: it routes by the view that its parent sends, reports its load, and asks
for models.

To the fleet it is a follower like any process that is not the leader (the fleet's owner), but its view comes
over the link to the parent (`workers/fleet_publisher`) instead of from Triton's index. Some routing state
is its own: in-flight slots at replicas, sequences, and which servers are outliers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import NEVER_S, ModelFacts, Replica, Server
from control_plane.fleet.domain.memory import DesiredState, Measured
from control_plane.fleet.domain.report import LoadReport
from control_plane.fleet.loading.replica_loader import ReplicaLoader
from control_plane.fleet.ownership.owner_requests import LeaderForwarding
from control_plane.fleet.ownership.reports import ReportBuilder, ReportCollector
from control_plane.fleet.routing.dispatch import FleetDispatcher
from control_plane.fleet.routing.model_router import ModelRouter
from control_plane.fleet.view.catalogue import FleetCatalogue
from control_plane.fleet.view.state import FleetState
from control_plane.models.domain.description import DescribedModel
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers
from control_plane.workers.messages import (
    LoadReported,
    ModelsChanged,
    ModelSnapshot,
    ReplicasChanged,
    ReplicaSnapshot,
    ServersChanged,
    ServerSnapshot,
)

_TICK_S = 0.5


class FleetFollower:
    """Fleet follower in a worker process: a replica of the parent's view, and the router that works by it."""

    def __init__(
        self,
        servers: Servers,
        *,
        send: Callable[[LoadReported], None],
        wait_s: float,
        process: str,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`wait_s` bounds how long requests wait for loads; `process` is a name unique to this process.

        `now_s` and `today_s` as in `FleetState`.
        """
        self.state = FleetState(servers, budget_bytes=0, now_s=now_s, today_s=today_s)
        self.state.described = self._described = dict[str, DescribedModel]()
        self._servers = servers
        self._views: dict[str, ReplicasChanged] = {}
        self._lives: dict[tuple[str, str], int] = {}
        self._process = process
        self._others = ReportCollector(self.state, servers, want=lambda wanted: None, passes_on=False)
        own = ReportBuilder(self.state, servers, process=process, without=self._others)
        self._asking = LeaderForwarding(_Link(send), self.state, own=own, is_leader=lambda: False)
        self.router = ModelRouter(self.state, ReplicaLoader(self.state, {}, leader=self._asking), wait_s=wait_s)
        self.dispatch = FleetDispatcher(self.router, catalogue=FleetCatalogue(self.state, servers))
        servers.follow(self)

    async def run(self) -> None:
        """Send load reports and requests for models until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._asking.run(), name="asking-the-owner")
            tasks.create_task(self._tick(), name="fleet-tick")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.router.judge_servers()
            self._others.expire()
            for told in self._views.values():
                # A request that got "unknown model" has dropped the replica here. It is gone, and the parent
                # says so soon, or it was loaded again in the meantime: then this puts it back.
                self._see(told)
            self.state.changed()  # wakes waiting requests, which ask for their models again

    def apply(self, message: ServersChanged | ModelsChanged | ReplicasChanged | LoadReported) -> None:
        """Apply a message from the parent."""
        match message:
            case ServersChanged(servers):
                for name, server in servers.items():
                    self._take_server(name, server)
            case ModelsChanged(models):
                self._take_models(models)
            case ReplicasChanged():
                self._views[message.server] = message
                self._see(message)
            case LoadReported(report):
                if report.process != self._process:
                    self._others.apply(report)
                return  # no request waits for another process's load: nobody is woken
        self.state.changed()

    # `triton/servers.ServerObserver`

    def up(self, upstream: Upstream, server: str) -> None:
        """Mark the server as up; its replicas come in a message of their own."""
        self.state.fleet.servers[server].is_up = True

    def down(self, reason: str, server: str) -> None:
        """Forget the server's replicas; later messages describe its next life."""
        self._views.pop(server, None)

    def left(self, server: str) -> None:
        """Nothing to do: `down` was called before."""

    def _take_server(self, name: str, seen: ServerSnapshot | None) -> None:
        if seen is None:
            self._servers.members[name].down("it has left the fleet")
            self._servers.remove(name)
            return
        if name not in self._servers.members:
            self._servers.add(name, is_needed=False)
            self.state.join(Server(name, seen.budget_bytes, is_up=False))
        server = self.state.fleet.servers[name]
        # Removed and added again, since the fleet indexes servers by some of the fields that change.
        self.state.fleet.remove_server(name)
        server.budget_bytes, server.pool, server.labels = seen.budget_bytes, seen.pool, seen.labels
        server.is_draining, server.parallel, server.serves_while_loading = seen.is_draining, seen.parallel, seen.serves_while_loading
        self.state.fleet.add_server(server)

    def _take_models(self, models: dict[str, ModelSnapshot | None]) -> None:
        others = {name: wish for name, wish in self.state.wishes.items() if name not in models}
        withdrawn = {name: DesiredState(is_suspended=True) for name, seen in models.items() if seen is not None and seen.is_suspended}
        self.state.apply_wishes({**others, **withdrawn})
        for name, seen in models.items():
            if seen is None:
                self.state.fleet.models.pop(name, None)
                self._described.pop(name, None)
            else:
                self._take_model(name, seen)

    def _take_model(self, name: str, seen: ModelSnapshot) -> None:
        models = self.state.fleet.models
        self._described[name] = DescribedModel(seen.spec, 0, has_sequences=seen.has_sequences)
        facts = models.setdefault(name, ModelFacts(seen.spec, seen.resident_bytes, seen.load_s, seen.service_s))
        facts.spec, facts.tier, facts.resident_bytes, facts.load_s = seen.spec, seen.tier, seen.resident_bytes, seen.load_s
        known = Measured(0, failures=seen.failures, quarantined_until_s=seen.quarantined_until_s, why=seen.why)
        self.state.measurements.recall(name, known)

    def _see(self, told: ReplicasChanged) -> None:
        fleet, server = self.state.fleet, self.state.fleet.servers.get(told.server)
        if server is None:
            return
        for name in server.copies.keys() - told.copies.keys():
            fleet.drop_replica(server, name)
            self._lives.pop((told.server, name), None)
        for name, seen in told.copies.items():
            copy = server.copies.get(name)
            # A replica that was loaded anew gets a new object: slots and times of the old one must not count
            # for it.
            if copy is None or self._lives.get((told.server, name)) != seen.life:
                copy = Replica(name, seen.state, 0, seen.since_s, last_used_s=self.state.now_s())
                fleet.put_replica(server, copy)
                self._lives[told.server, name] = seen.life
            _update_replica(copy, seen)
        loading = [copy.ready_s for copy in server.copies.values() if copy.state is ModelState.LOADING]
        server.loads_until_s = max(loading, default=NEVER_S)


def _update_replica(copy: Replica, seen: ReplicaSnapshot) -> None:
    copy.state, copy.bytes, copy.since_s, copy.is_step = seen.state, seen.bytes, seen.since_s, seen.is_step
    copy.ready_s = NEVER_S if seen.ready_s is None else seen.ready_s


class _Link:
    """`fleet/ports.LeaderChannel` to the parent, which acts as the leader or forwards reports to it."""

    def __init__(self, send: Callable[[LoadReported], None]) -> None:
        self._send = send

    async def report(self, report: LoadReport) -> None:
        self._send(LoadReported(report))

    async def receive(self, *, timeout_s: float) -> list[LoadReport]:
        await asyncio.sleep(timeout_s)
        return []

    async def close(self) -> None: ...
