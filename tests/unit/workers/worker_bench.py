"""A fleet's leader with worker processes, in virtual time: messages pass through the codec and arrive at
once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from control_plane.core.endpoints import TritonEndpoints
from control_plane.fleet.domain.fleet import Replica, Server
from control_plane.fleet.leadership.reports import ReportCollector
from control_plane.models.domain.description import DescribedModel
from control_plane.triton.servers import Servers
from control_plane.workers.codec import LENGTH_BYTES, decode, encode
from control_plane.workers.fleet_follower import FleetFollower
from control_plane.workers.messages import Message, ToWorker
from control_plane.workers.messages.between_workers import HangSuspected, LoadReported
from control_plane.workers.messages.to_workers import (
    ModelsChanged,
    ReplicasChanged,
    ServersChanged,
    UpstreamDown,
    UpstreamSilence,
    UpstreamUp,
    WorkedOnElsewhere,
)
from control_plane.workers.parent.fleet_publisher import FleetPublisher
from control_plane.workers.worked_on import worked_on
from tests.fakes import FakeUpstream
from tests.unit.fleet.fleet_bench import WAIT_S, FleetBench, call, running


def over_the_link(message: Message) -> Message:
    return decode(encode(message)[LENGTH_BYTES:])


class Worker:
    """One worker process; its messages and its parent's arrive while it `is_alive`."""

    def __init__(self, parent: Parent, name: str) -> None:
        self.parent = parent
        self.is_alive = True
        self.told_worked_on = WorkedOnElsewhere(())
        self.told: list[ToWorker] = []
        self.servers = Servers(None, ())
        self.fleet = FleetFollower(
            self.servers,
            send=self._send,
            wait_s=WAIT_S,
            process=name,
            hedging=False,
            now_s=parent.now_s,
            today_s=lambda: 1e9 + parent.now_s(),
        )
        for message in parent.for_workers.snapshot():
            self.take(message)

    def take(self, message: ToWorker) -> None:
        self.told.append(message)
        match over_the_link(message):
            case UpstreamUp(_, server):
                self.servers.members[server].up(self.parent.servers.get(server))
            case UpstreamDown(reason, server):
                self.servers.members[server].down(reason)
            case UpstreamSilence(is_silent, server):
                (self.servers.members[server].fell_silent if is_silent else self.servers.members[server].heard)()
            case ServersChanged() | ModelsChanged() | ReplicasChanged() | LoadReported() | WorkedOnElsewhere() | HangSuspected() as seen:
                self.fleet.apply(seen)

    def _send(self, message: LoadReported | HangSuspected) -> None:
        if not self.is_alive:
            return
        match over_the_link(message):
            case LoadReported(report):
                self.parent.for_workers.reported(report)
            case HangSuspected() as suspected:
                for other in self.parent.workers:
                    if other is not self:
                        other.take(suspected)

    def server(self, name: str = "s0") -> Server:
        return self.fleet.state.fleet.servers[name]

    def replica(self, name: str, server: str = "s0") -> Replica:
        return self.server(server).replicas[name]

    async def use(self, name: str, timeout_s: float = 1000.0, *, for_s: float = 0.0) -> str:
        """Run a request that takes so long at its server; returns that server's name."""
        claim = await self.fleet.router.acquire(call(name), deadline_s=self.parent.now_s() + timeout_s)
        try:
            await asyncio.sleep(for_s)
        finally:
            claim.release(answered=True)
        return claim.server.name


class Parent(FleetBench):
    def __init__(self, *models: DescribedModel, servers: int = 1) -> None:
        super().__init__(*models, servers=servers)
        self.workers: list[Worker] = []
        reports = ReportCollector(
            self.state,
            self.servers,
            want=self.router.request_replica,
            repair=self.router.repair,
            on_report=lambda report: self.for_workers.relay(report),
        )
        self.for_workers = FleetPublisher(self.state, self.servers, reports=reports)
        self.for_workers.begin(self._tell)
        for number, (name, member) in enumerate(self.servers.members.items()):
            member.up(FakeUpstream(TritonEndpoints("triton", 1, 2 + number, None), control=self.tritons[name]))

    def _tell(self, message: ToWorker) -> None:
        for worker in self.workers:
            if worker.is_alive:
                worker.take(message)

    async def pass_on(self) -> None:
        """As `workers/parent/workers` does with what its workers say four times a second."""
        while True:
            await asyncio.sleep(0.25)
            for worker in self.workers:
                others = [each.fleet.dispatch for each in self.workers if each is not worker and each.is_alive]
                found = worked_on(request for each in others for request in (*each.awaited(), *each.given_up()))
                if found != worker.told_worked_on:
                    worker.told_worked_on = found
                    worker.take(found)


@asynccontextmanager
async def serving(parent: Parent, count: int = 2) -> AsyncIterator[list[Worker]]:
    loop = asyncio.get_running_loop()
    async with running(parent, reconciles=True):
        tasks = [loop.create_task(parent.for_workers.run()), loop.create_task(parent.pass_on())]
        await asyncio.sleep(1.0)
        for number in range(count):
            worker = Worker(parent, f"w{number}")
            parent.workers.append(worker)
            tasks.append(loop.create_task(worker.fleet.run()))
        await asyncio.sleep(1.0)
        try:
            yield parent.workers
            assert not [task for task in tasks if task.done()], "a task has ended"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
