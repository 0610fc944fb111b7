"""Cancelled calls by httpx against a server that accepts and is then silent in the TLS handshake."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx

from control_plane.auth.adapters.jwks import JwksCache, RefreshIntervals
from control_plane.concurrency.used_connection import UsedConnection


class SilentServer:
    """Server that accepts connections, reads, and says nothing."""

    def __init__(self) -> None:
        self.url = ""
        self.accepted = 0
        self.open = 0
        self.changed = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted, self.open = self.accepted + 1, self.open + 1
        self._writers.append(writer)
        await reader.read(1)
        self.changed.set()
        with suppress(OSError):
            await reader.read()
        self.open -= 1
        self.changed.set()
        writer.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[SilentServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        gc.disable()  # a collection would close what is lost, some time
        try:
            yield self
        finally:
            gc.enable()
            server.close()
            for writer in self._writers:
                writer.transport.abort()

    async def until(self, accepted: int, most_open: int) -> None:
        async with asyncio.timeout(30):
            while self.accepted < accepted or self.open > most_open:
                self.changed.clear()
                await self.changed.wait()


async def test_a_call_that_is_cancelled_in_the_handshake_leaves_no_connection() -> None:
    async with SilentServer().serving() as server, httpx.AsyncClient(timeout=None, trust_env=False) as client:

        async def call() -> None:
            async with UsedConnection() as used:
                await client.get(server.url, extensions=used.trace)

        calling = asyncio.get_running_loop().create_task(call())
        await server.until(accepted=1, most_open=1)
        calling.cancel()
        await asyncio.wait([calling])
        assert calling.cancelled()
        await server.until(accepted=1, most_open=0)


async def test_an_issuer_that_is_silent_in_the_handshake_costs_one_connection_at_a_time() -> None:
    async with SilentServer().serving() as server:
        pace = RefreshIntervals(refresh_s=1e6, at_least_s=0.0, fetch_timeout_s=0.05)
        running = asyncio.get_running_loop().create_task(JwksCache(server.url, pace=pace).run())
        try:
            await server.until(accepted=4, most_open=1)
        finally:
            running.cancel()
            await asyncio.wait([running])
        await server.until(accepted=4, most_open=0)
