"""Usage that tests of the stores of usage sums add, and waits until a store has counted it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from control_plane.metering.domain.usage import Usage, UsageBatch, UsageKey
from control_plane.metering.ports import UsageStore
from tests.redis_server import RedisServer

DAY, NEXT_DAY = "2023-11-15", "2023-11-16"
ONE = Usage(requests=1, rows=2, elements=10, compute_units=0.5)
STREAM = "tidegate:usage:events"


def used(day: str = DAY, *, tenant: str = "a", model: str = "m", usage: Usage = ONE) -> tuple[UsageKey, Usage]:
    return UsageKey(day, tenant, model), usage


def batch(*sums: tuple[UsageKey, Usage]) -> UsageBatch:
    return UsageBatch(uuid4().hex, sums)


@asynccontextmanager
async def running(*stores: UsageStore) -> AsyncIterator[list[asyncio.Task[None]]]:
    """A block in which their background work goes on."""
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(store.run()) for store in stores]
        try:
            yield background
        finally:
            for task in background:
                task.cancel()


async def counted(server: RedisServer) -> None:
    """Return when all that was on the stream is in the sums."""
    async with asyncio.timeout(20.0):
        while server.call("XLEN", STREAM) != b":0\r\n":
            await asyncio.sleep(0.02)
