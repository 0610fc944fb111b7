"""Gateways that share a fleet's memory, for tests of what outlives them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from control_plane.models.domain.description import DescribedModel
from tests.fakes import FakeUpstream
from tests.fakes.stores.fleet_memory import FakeFleetMemory
from tests.unit.fleet.fleet_bench import FleetBench, running

SOON_S = 1.2
"""Within a second everybody knows."""
HOUR_S = 3600.0
MIB = 2**20


def beside(one: FleetBench, memory: FakeFleetMemory) -> FleetBench:
    """Return another gateway before the same Tritons, which is not the leader."""
    other = FleetBench(*one.described.models.values(), servers=len(one.tritons), memory=memory)
    other.is_leader = False
    other.request_replica = lambda model: not other.is_leader
    for name, triton in one.tritons.items():
        other.tritons[name] = triton
        other.servers.members[name].up(FakeUpstream(control=triton))
    return other


@asynccontextmanager
async def two(*models: DescribedModel, servers: int = 1) -> AsyncIterator[tuple[FleetBench, FleetBench, FakeFleetMemory]]:
    """Return the leader, another gateway, and the memory that they share."""
    memory = FakeFleetMemory()
    leader = FleetBench(*models, servers=servers, memory=memory)
    other = beside(leader, memory)
    async with AsyncExitStack() as stack:
        for bench in (leader, other):
            await stack.enter_async_context(running(bench, reconciles=True, remembers=True))
        await asyncio.sleep(SOON_S)
        yield leader, other, memory


async def restarted(memory: FakeFleetMemory, *models: DescribedModel) -> FleetBench:
    bench = FleetBench(*models, memory=memory)
    await bench.remembering.recall()
    return bench
