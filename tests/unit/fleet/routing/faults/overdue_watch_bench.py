"""A replica that answers nobody while others do, and requests that are kept coming."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from control_plane.core.errors import DeadlineExceeded
from control_plane.fleet.routing.dispatch import FleetDispatcher
from control_plane.triton.ports import Upstream
from tests.unit.fleet.fleet_bench import FleetBench, running
from tests.unit.fleet.routing.dispatch_bench import Request, status
from tests.unit.fleet.routing.faults.resending_bench import OK, ready_everywhere, send


class Wedged:
    """Servers that compute one request after the other, each for as long as it takes, whoever still waits for it."""

    def __init__(self, bench: FleetBench) -> None:
        self.bench = bench
        self.turns = {bench.servers.members[name].pick(): asyncio.Lock() for name in bench.tritons}
        self.tasks: list[asyncio.Task[None]] = []

    async def compute(self, server: Upstream, takes_s: float) -> None:
        async def work() -> None:
            async with self.turns[server]:
                await asyncio.sleep(takes_s)

        self.tasks.append(asyncio.get_running_loop().create_task(work()))
        await asyncio.shield(self.tasks[-1])

    async def ask(
        self, takes_s: float = 0.01, *, timeout_s: float = 30.0, is_repeatable: bool = True, dispatch: FleetDispatcher | None = None
    ) -> Any:
        return await send(self.bench, InTurn(self, takes_s), timeout_s=timeout_s, is_repeatable=is_repeatable, dispatch=dispatch)


class InTurn(Request):
    def __init__(self, servers: Wedged, takes_s: float) -> None:
        super().__init__(takes_s=takes_s)
        self.servers = servers

    async def send(self, server: Upstream, *, timeout_s: float) -> Any:
        self.sent.append((server, timeout_s))
        try:
            async with asyncio.timeout(timeout_s):
                await self.servers.compute(server, self.takes_s)
        except TimeoutError:
            raise DeadlineExceeded("Triton did not answer within the request's deadline") from None
        return OK


@asynccontextmanager
async def scene(servers: int = 2) -> AsyncIterator[tuple[FleetBench, Wedged]]:
    async with running(FleetBench(servers=servers)) as bench:
        await ready_everywhere(bench)
        tritons = Wedged(bench)
        watch = asyncio.get_running_loop().create_task(bench.dispatch.overdue.run())
        try:
            yield bench, tritons
        finally:
            for task in (watch, *tritons.tasks):
                task.cancel()
            await asyncio.gather(watch, *tritons.tasks, return_exceptions=True)


async def keep_asking(
    tritons: Wedged, until_s: float, told: list[float], *, is_repeatable: bool = True, dispatch: FleetDispatcher | None = None
) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() < until_s:
        began_s = loop.time()
        assert status(await tritons.ask(is_repeatable=is_repeatable, dispatch=dispatch)) == 200
        told.append(loop.time() - began_s)
        await asyncio.sleep(0.05)
