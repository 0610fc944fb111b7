"""Floods of the admin port without a key, beside a caller of the data port whose health checks are all
answered."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.host.network.listening import bind_tcp
from tests.aio import settle
from tests.unit.admin.admin_bench import Bench
from tests.wire.admin.admin import LIMITS, server_of
from tests.wire.gateway import LIVE, Gateway, gateway

CONNECTIONS = 40
MOST = 20
"""Connections that the port accepts; one source gets three quarters of them."""

GROWTH_BYTES = 64 << 20
"""Most bytes by which a flood may make the process grow; without limits it grows by some hundreds of MB."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


async def attack(port: int, first: bytes, more: bytes, pieces: int) -> None:
    """One flooding connection, which sends until it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(4.0):
                for piece in (first, *[more] * pieces):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                await reader.read()
    finally:
        writer.transport.abort()


HEAD = b"GET /keys HTTP/1.1\r\nHost: localhost\r\n"
FLOODS = {
    "a head without end": (HEAD, b"x: " + b"y" * 7000 + b"\r\n", 500),
    "a field without end": (HEAD + b"x: ", b"y" * 8192, 500),
    "a target without end": (b"GET /", b"y" * 8192, 500),
    "fields without number": (HEAD, b"a: b\r\n" * 1000, 500),
    "a body without end": (
        b"PUT /routes/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"2000\r\n" + b" " * 0x2000 + b"\r\n",
        500,
    ),
    "pipelined requests": (b"", (HEAD + b"\r\n") * 200, 10),
    "nothing at all": (b"", b"", 0),
    "half a head": (HEAD, b"", 0),
}


@asynccontextmanager
async def both() -> AsyncIterator[tuple[Gateway, int]]:
    """A data port, and the number of an admin port that the same loop serves."""
    bench = Bench(authentication=True)
    await bench.known.start()
    with bind_tcp("127.0.0.1", 0, setting="--admin-port") as bound:
        limits = replace(LIMITS, max_connections=MOST, source_share=0.75, header_timeout_s=1.0, body_timeout_s=1.0, idle_timeout_s=1.0)
        server = server_of(bench, limits)
        async with gateway() as it, asyncio.TaskGroup() as tasks:
            await server.listen(tasks, bound)
            try:
                yield it, bound.getsockname()[1]
            finally:
                await server.drain(0)
            await settle()
            assert len(server._held) == 0, "each connection was counted back"


async def checks_beside(it: Gateway, flood: Callable[[], Awaitable[object]]) -> int:
    """The number of health checks that were answered during the flood."""
    client, checks = await it.connect(), 0
    async with asyncio.TaskGroup() as tasks:
        flooding = tasks.create_task(_whole(flood))
        while not flooding.done():
            assert (await client.ask(LIVE)).status == 200
            checks += 1
            await asyncio.sleep(0.005)
    return checks


async def _whole(flood: Callable[[], Awaitable[object]]) -> None:
    await flood()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


@pytest.mark.parametrize("name", FLOODS)
async def test_memory_is_bounded_and_the_data_port_answers(name: str) -> None:
    async with both() as (it, port):
        before = resident_bytes()
        checks = await checks_beside(it, lambda: asyncio.gather(*(attack(port, *FLOODS[name]) for _ in range(CONNECTIONS))))
        assert resident_bytes() - before < GROWTH_BYTES
        assert checks > 0


async def test_idle_connections_take_their_share_and_make_room_for_others() -> None:
    async with both() as (it, port):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
        client = await it.connect()
        assert (await client.ask(LIVE)).status == 200
        for address in ("127.0.0.2", "127.0.0.1"):  # for its own source, too, of which an idle one makes room
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            writer.write(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            held.append((reader, writer))
        for _, each in held:
            each.transport.abort()
