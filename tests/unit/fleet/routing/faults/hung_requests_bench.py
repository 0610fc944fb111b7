"""Requests under which a replica hangs, and the repair that ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from control_plane.core.errors import DeadlineExceeded
from control_plane.core.infer_call import InferCall
from control_plane.fleet.routing.dispatch import FleetDispatcher
from control_plane.triton.ports import Upstream
from tests.unit.fleet.fleet_bench import FleetBench
from tests.unit.fleet.routing.dispatch_bench import Request, status
from tests.unit.fleet.routing.faults.overdue_watch_bench import Wedged
from tests.unit.fleet.routing.faults.resending_bench import OK, send

ENDED_AFTER_S = 3.0
TAKES_S = {"endless": 3600.0, "slow": 2.2}


class Mended(Wedged):
    """Servers that hang in one text; whoever watches them ends the stub of such a replica, and it is loaded anew."""

    def __init__(self, bench: FleetBench, how: str) -> None:
        super().__init__(bench)
        self.how = how
        self.ended_after_s = ENDED_AFTER_S
        self.wedged = list[str]()

    async def send(self, text: str, *, timeout_s: float = 2.0, dispatch: FleetDispatcher | None = None) -> Any:
        request = _Text(self, text)
        try:
            return await send(self.bench, request, timeout_s=timeout_s, dispatch=dispatch)
        finally:
            request.is_inflated = False

    async def compute(self, server: Upstream, takes_s: float) -> None:
        if takes_s == TAKES_S["endless"]:
            self.wedged.append(next(name for name in self.bench.tritons if self.bench.servers.members[name].pick() is server))
            asyncio.get_running_loop().call_later(self.ended_after_s, self.end, self.wedged[-1])
        await super().compute(server, takes_s)

    def end(self, name: str) -> None:
        self.turns[self.bench.servers.members[name].pick()] = asyncio.Lock()
        self.bench.tritons[name].dead.add("a")
        self.bench.router.stub_died(name, "a", self.how)


class _Text(Request):
    def __init__(self, servers: Mended, text: str) -> None:
        super().__init__(text=text)
        self.servers = servers
        self.is_inflated = True
        """As a compressed gRPC message is until it is answered or given up."""

    def content(self, call: InferCall) -> tuple[bytes, ...]:
        return super().content(call) if self.is_inflated else (b"compressed",)

    async def send(self, server: Upstream, *, timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                await self.servers.compute(server, TAKES_S.get(self.text.strip(), 0.01))
        except TimeoutError:
            raise DeadlineExceeded("Triton did not answer within the request's deadline") from None
        return OK


async def given_up(sent: Awaitable[Any]) -> None:
    with pytest.raises(DeadlineExceeded):
        await sent


@asynccontextmanager
async def crowd(servers: Mended, *dispatches: FleetDispatcher) -> AsyncIterator[list[float]]:
    """Callers of whom each replica has some; yields how long each answer has taken."""
    told = list[float]()

    async def ask(dispatch: FleetDispatcher) -> None:
        while True:
            began_s = servers.bench.now_s()
            assert status(await servers.send("innocent", timeout_s=30.0, dispatch=dispatch)) == 200
            told.append(servers.bench.now_s() - began_s)

    callers = [asyncio.get_running_loop().create_task(ask(each)) for each in dispatches or [servers.bench.dispatch] for _ in range(6)]
    try:
        yield told
    finally:
        for caller in callers:
            caller.cancel()
        for ended in await asyncio.gather(*callers, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended
