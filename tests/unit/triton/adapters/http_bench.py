"""The HTTP client of Triton, before a server that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from control_plane.core.endpoints import TcpAddress
from control_plane.core.errors import ControlPlaneError
from control_plane.protocols.header_forwarding import HeaderForwarding
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.triton.adapters.http.client import HttpClient
from tests.aio import settle
from tests.unit.triton.adapters.scripted_triton import OK, Exchange, Script, ScriptedTriton, answer_ok, scripted_triton

REQUEST = HttpRequest(b"POST", b"/v2/models/m/infer", [(b"X-Trace", b"7")], b"body")
TRACE = HeaderForwarding.of("^x-trace$")


@asynccontextmanager
async def pool(script: Script = answer_ok, *, limit: int = 10, together: int = 1) -> AsyncIterator[tuple[HttpClient, ScriptedTriton]]:
    async with scripted_triton(script) as triton:
        address = TcpAddress("127.0.0.1", triton.port)
        http = HttpClient(address, max_connections=limit, forwarding=TRACE, opened_together=together)
        try:
            yield http, triton
        finally:
            await http.close()
            await triton.wait_until_open(0)


class Gate:
    """Script that holds every response back until the test releases it."""

    def __init__(self) -> None:
        self._releases: dict[int, asyncio.Event] = {}

    async def __call__(self, exchange: Exchange) -> bytes:
        await self._release(exchange.number).wait()
        return OK

    def let(self, *numbers: int) -> None:
        for number in numbers:
            self._release(number).set()

    def _release(self, number: int) -> asyncio.Event:
        return self._releases.setdefault(number, asyncio.Event())


async def send(http: HttpClient, timeout_s: float = 20.0) -> HttpAnswer:
    return await http.send(REQUEST, timeout_s=timeout_s)


async def failure(http: HttpClient, error: type[ControlPlaneError], timeout_s: float = 20.0) -> str:
    with pytest.raises(error) as caught:
        await send(http, timeout_s)
    return str(caught.value)


async def assert_all_slots_are_there(http: HttpClient, triton: ScriptedTriton, limit: int) -> None:
    """As many requests as the limit are sent at once, and one more waits."""
    gate = Gate()
    triton.script = gate
    first = len(triton.exchanges)
    while not triton.arrivals.empty():
        triton.arrivals.get_nowait()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(limit + 1):
            tasks.create_task(http.send(REQUEST, timeout_s=20.0))
        for _ in range(limit):
            await triton.arrivals.get()
        await settle()
        assert triton.arrivals.empty()
        gate.let(*range(first, first + limit + 1))
