"""A worker process's part in a fleet: it routes by the view that its parent sends, reports its load, and asks
for models.

To the fleet it is a follower like any process that is not the leader, but its view comes
over the link to the parent (`workers/parent/fleet_publisher`) instead of from Triton's index. Some routing state
is its own: in-flight slots at replicas, sequences, and which servers are outliers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from control_plane.fleet.domain.leadership.report import LoadReport
from control_plane.fleet.leadership.leader_requests import LeaderForwarding
from control_plane.fleet.leadership.reports import ReportBuilder, ReportCollector
from control_plane.fleet.loading.replica_loader import ReplicaLoader
from control_plane.fleet.routing.dispatch import FleetDispatcher
from control_plane.fleet.routing.model_router import ModelRouter
from control_plane.fleet.view.catalogue import FleetCatalogue
from control_plane.fleet.view.mirror import FleetMirror
from control_plane.fleet.view.state import FleetState
from control_plane.triton.servers import Servers
from control_plane.workers.messages.between_workers import HangSuspected, LoadReported
from control_plane.workers.messages.to_workers import ModelsChanged, ReplicasChanged, ServersChanged, WorkedOnElsewhere

_TICK_S = 0.5


class FleetFollower:
    """Fleet follower in a worker process: a replica of the parent's view, and the router that works by it."""

    def __init__(
        self,
        servers: Servers,
        *,
        send: Callable[[LoadReported | HangSuspected], None],
        wait_s: float,
        process: str,
        hedging: bool = True,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`wait_s` bounds how long requests wait for loads; `process` is a name unique to this process, `hedging` as
        in `FleetDispatcher`.

        `now_s` and `today_s` as in `FleetState`.
        """
        self.state = FleetState(servers, budget_bytes=0, now_s=now_s, today_s=today_s)
        self._mirror = FleetMirror(self.state, servers)
        self._process = process
        self._others = ReportCollector(self.state, servers, want=lambda wanted: None, passes_on=False)
        own = ReportBuilder(self.state, servers, process=process, without=self._others)
        self._forwarding = LeaderForwarding(_Link(send), self.state, own=own, is_leader=lambda: False)
        self.router = ModelRouter(self.state, ReplicaLoader(self.state, {}, leader=self._forwarding), wait_s=wait_s)
        self.dispatch = FleetDispatcher(self.router, catalogue=FleetCatalogue(self.state, servers), hedging=hedging, now_s=now_s)
        self.dispatch.hung.tell = lambda digest, until_s: send(HangSuspected(*digest, until_s))

    async def run(self) -> None:
        """Send load reports and requests for models until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._forwarding.run(), name="leader-forwarding")
            tasks.create_task(self._tick(), name="fleet-tick")
            tasks.create_task(self.dispatch.hedging.run(), name="hedging")
            tasks.create_task(self.dispatch.overdue.run(), name="overdue-watch")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.state.ejection.judge()
            self._others.expire()
            for _ in self._mirror.apply_again():
                await asyncio.sleep(0)  # thousands of replicas take milliseconds
            self.state.changed()  # wakes waiting requests, which ask for their models again

    def apply(self, message: ServersChanged | ModelsChanged | ReplicasChanged | LoadReported | WorkedOnElsewhere | HangSuspected) -> None:
        """Apply a message from the parent."""
        match message:
            case ServersChanged(servers):
                for name, server in servers.items():
                    self._mirror.apply_server(name, server)
            case ModelsChanged(models):
                self._mirror.apply_models(models)
            case ReplicasChanged(name, replicas):
                self._mirror.apply_replicas(name, replicas)
            case LoadReported(report):
                if report.process != self._process:
                    self._others.apply(report)
                return  # no request waits for another process's load: nobody is woken
            case WorkedOnElsewhere(requests):
                self.state.doubts.others_work_on(requests)
                return
            case HangSuspected(model, digest, until_s):
                self.dispatch.hung.learn((model, digest), until_s)
                return
        self.state.changed()


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
