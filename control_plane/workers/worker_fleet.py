"""A worker process's part in a fleet: it chooses servers by what its parent tells it, reports how it uses them, and asks for models.

To the fleet it is a process like any other that is not the owner; its picture comes over the link instead of from Triton's index
(`workers/fleet_for_workers` is the other end). What it may send where is its own: places at copies, sequences, outliers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import NEVER_S, Copy, ModelFacts, Server
from control_plane.fleet.domain.memory import Measured, Wish
from control_plane.fleet.domain.report import FleetReport
from control_plane.fleet.ownership.owner_requests import Asking
from control_plane.fleet.ownership.reports import OthersReports, OwnReport
from control_plane.fleet.routing.dispatch import FleetDispatch
from control_plane.fleet.routing.residency import Residency
from control_plane.fleet.view.catalogue import FleetCatalogue
from control_plane.fleet.view.state import FleetState
from control_plane.models.domain.description import DescribedModel
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers
from control_plane.workers.messages import CopiesSeen, ModelsSeen, Reported, SeenCopy, SeenModel, SeenServer, ServersSeen

_TICK_S = 0.5


class WorkerFleet:
    """A fleet as one worker process takes part in it."""

    def __init__(
        self,
        servers: Servers,
        *,
        send: Callable[[Reported], None],
        wait_s: float,
        process: str,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """Requests wait for loads for `wait_s` at most; `process` is a name that no other process has. Times as `FleetState` has them."""
        self.state = FleetState(servers, budget_bytes=0, now_s=now_s, today_s=today_s)
        self.state.described = self._described = dict[str, DescribedModel]()
        self._servers = servers
        self._told: dict[str, CopiesSeen] = {}
        self._lives: dict[tuple[str, str], int] = {}
        self._process = process
        self._others = OthersReports(self.state, servers, want=lambda wanted: None, passes_on=False)
        own = OwnReport(self.state, servers, process=process, without=self._others)
        self._asking = Asking(_Link(send), self.state, own=own, is_owner=lambda: False)
        self.residency = Residency(self.state, {}, wait_s=wait_s, ask_owner=self._asking.ask, tell_owner=self._asking.tell_died)
        self.dispatch = FleetDispatch(self.residency, catalogue=FleetCatalogue(self.state, servers))
        servers.follow(self)

    async def run(self) -> None:
        """Report and ask until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._asking.run(), name="asking-the-owner")
            tasks.create_task(self._tick(), name="fleet-tick")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.residency.judge_servers()
            self._others.expire()
            for told in self._told.values():
                self._see(told)  # what a request did not find there was no longer there, or the parent says so soon
            self.state.changed()  # who waits asks again

    def take(self, message: ServersSeen | ModelsSeen | CopiesSeen | Reported) -> None:
        """What the parent tells."""
        match message:
            case ServersSeen(servers):
                for name, server in servers.items():
                    self._take_server(name, server)
            case ModelsSeen(models):
                self._take_models(models)
            case CopiesSeen():
                self._told[message.server] = message
                self._see(message)
            case Reported(report):
                if report.process != self._process:
                    self._others.take(report)
                return  # nobody waits for that
        self.state.changed()

    # `triton/servers.Follower`

    def up(self, upstream: Upstream, server: str) -> None:
        """What it has is told."""
        self.state.fleet.servers[server].is_up = True

    def down(self, reason: str, server: str) -> None:
        """What it had is gone; what is told of it from now on is of its next life."""
        self._told.pop(server, None)

    def left(self, server: str) -> None:
        """It went down before."""

    def _take_server(self, name: str, seen: SeenServer | None) -> None:
        if seen is None:
            self._servers.members[name].down("it has left the fleet")
            self._servers.remove(name)
            return
        if name not in self._servers.members:
            self._servers.add(name, is_needed=False)
            self.state.join(Server(name, seen.budget_bytes, is_up=False))
        server = self.state.fleet.servers[name]
        self.state.fleet.remove_server(name)
        server.budget_bytes, server.pool, server.labels = seen.budget_bytes, seen.pool, seen.labels
        server.is_leaving, server.parallel, server.serves_while_loading = seen.is_leaving, seen.parallel, seen.serves_while_loading
        self.state.fleet.add_server(server)

    def _take_models(self, models: dict[str, SeenModel | None]) -> None:
        others = {name: wish for name, wish in self.state.wishes.items() if name not in models}
        withdrawn = {name: Wish(is_withdrawn=True) for name, seen in models.items() if seen is not None and seen.is_withdrawn}
        self.state.follow({**others, **withdrawn})
        for name, seen in models.items():
            if seen is None:
                self.state.fleet.models.pop(name, None)
                self._described.pop(name, None)
            else:
                self._take_model(name, seen)

    def _take_model(self, name: str, seen: SeenModel) -> None:
        models = self.state.fleet.models
        self._described[name] = DescribedModel(seen.spec, 0, has_sequences=seen.has_sequences)
        facts = models.setdefault(name, ModelFacts(seen.spec, seen.resident_bytes, seen.load_s, seen.service_s))
        facts.spec, facts.tier, facts.resident_bytes, facts.load_s = seen.spec, seen.tier, seen.resident_bytes, seen.load_s
        known = Measured(0, failures=seen.failures, quarantined_until_s=seen.quarantined_until_s, why=seen.why)
        self.state.measurements.recall(name, known)

    def _see(self, told: CopiesSeen) -> None:
        fleet, server = self.state.fleet, self.state.fleet.servers.get(told.server)
        if server is None:
            return
        for name in server.copies.keys() - told.copies.keys():
            fleet.drop_copy(server, name)
            self._lives.pop((told.server, name), None)
        for name, seen in told.copies.items():
            copy = server.copies.get(name)
            if copy is None or self._lives.get((told.server, name)) != seen.life:
                copy = Copy(name, seen.state, 0, seen.since_s, last_used_s=self.state.now_s())
                fleet.put_copy(server, copy)
                self._lives[told.server, name] = seen.life
            _bring_in_line(copy, seen)
        loading = [copy.ready_s for copy in server.copies.values() if copy.state is ModelState.LOADING]
        server.loads_until_s = max(loading, default=NEVER_S)


def _bring_in_line(copy: Copy, seen: SeenCopy) -> None:
    copy.state, copy.bytes, copy.since_s, copy.is_step = seen.state, seen.bytes, seen.since_s, seen.is_step
    copy.ready_s = NEVER_S if seen.ready_s is None else seen.ready_s


class _Link:
    """`fleet/ports.OwnerLine` to the parent, which does what the owner does or passes it on."""

    def __init__(self, send: Callable[[Reported], None]) -> None:
        self._send = send

    async def report(self, report: FleetReport) -> None:
        self._send(Reported(report))

    async def take(self, *, timeout_s: float) -> list[FleetReport]:
        await asyncio.sleep(timeout_s)
        return []

    async def close(self) -> None: ...
