"""Gateways of one fleet that forward requests to their leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from control_plane.core.endpoints import TritonEndpoints
from control_plane.fleet.leadership.leader_requests import LeaderForwarding
from control_plane.fleet.leadership.reports import ReportBuilder, ReportCollector
from control_plane.models.domain.description import DescribedModel
from tests.fakes import FakeUpstream
from tests.fakes.stores.leader_channel import FakeLeaderChannel
from tests.unit.fleet.fleet_bench import FleetBench, running


class Gateway(FleetBench):
    """One of several gateways before the same Tritons, with a line between them."""

    def __init__(self, line: FakeLeaderChannel, *models: DescribedModel, process: str = "", servers: int = 1, owns: bool = False) -> None:
        super().__init__(*models, servers=servers)
        self.is_leader = owns
        self.own = ReportBuilder(self.state, self.servers, process=process or ("leader" if owns else "other"))
        self.others = ReportCollector(self.state, self.servers, want=self.router.request_replica)
        self.asking = LeaderForwarding(line, self.state, own=self.own, others=self.others, is_leader=lambda: self.is_leader)
        self.request_replica = self.asking.request_replica

    def share(self, *gateways: Gateway) -> None:
        """Let this gateway serve the same Tritons as these."""
        for number, (name, control) in enumerate(self.tritons.items()):
            upstream = FakeUpstream(TritonEndpoints("triton", 1, 2 + number, None), control=control)
            for gateway in (self, *gateways):
                gateway.tritons[name] = control
                gateway.servers.members[name].up(upstream)


@asynccontextmanager
async def serving(*gateways: Gateway) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    gateways[0].share(*gateways[1:])
    async with AsyncExitStack() as stack:
        for gateway in gateways:
            await stack.enter_async_context(running(gateway, reconciles=True))
        tasks = [loop.create_task(each.asking.run()) for each in gateways]
        tasks += [loop.create_task(each.asking.poll_while_waiting(each.reconciler.poll_index)) for each in gateways]
        await asyncio.sleep(1.0)
        try:
            yield
            assert not [task for task in tasks if task.done()], "a task has ended"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
