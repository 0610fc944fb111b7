"""Scripted TCP server in Triton's place: it sends what a test tells it to, byte for byte, and counts
connections.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Script = Callable[["Exchange"], Awaitable[bytes]]


@dataclass(frozen=True)
class Exchange:
    """Request that arrived: the numbers of its connection and of the request itself, both from 0."""

    connection: int
    number: int
    request: bytes
    writer: asyncio.StreamWriter


async def answer_ok(exchange: Exchange) -> bytes:
    return OK


@dataclass
class ScriptedTriton:
    script: Script = answer_ok
    """Script of the server: returns the bytes of a response; no bytes close the connection."""
    host: str = "127.0.0.1"
    port: int = 0
    accepted: int = 0
    open: int = 0
    in_progress: int = 0
    exchanges: list[Exchange] = field(default_factory=list)
    arrivals: asyncio.Queue[Exchange] = field(default_factory=asyncio.Queue)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def wait_until_open(self, count: int) -> None:
        """Wait until exactly so many connections are open."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.open == count)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, self.accepted = self.accepted, self.accepted + 1
        self.writers.add(writer)
        await self._count(+1)
        try:
            while await self._answer_one(connection, reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.writers.discard(writer)
            with suppress(ConnectionError):
                await writer.wait_closed()
            await self._count(-1)

    async def _answer_one(self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _read_request(reader)
        exchange = Exchange(connection, len(self.exchanges), request, writer)
        self.exchanges.append(exchange)
        self.in_progress += 1
        self.arrivals.put_nowait(exchange)
        try:
            answer = await _unless_closed(self.script(exchange), reader)
        finally:
            self.in_progress -= 1
        if not answer:
            return False
        writer.write(answer)
        await writer.drain()
        return True

    async def _count(self, change: int) -> None:
        async with self.changed:
            self.open += change
            self.changed.notify_all()


@asynccontextmanager
async def scripted_triton(script: Script = answer_ok, host: str = "127.0.0.1") -> AsyncIterator[ScriptedTriton]:
    """Run the server on a free port; connections that are still open at the end are closed."""
    triton = ScriptedTriton(script, host)
    server = await asyncio.start_server(triton.serve, host, 0)
    triton.port = server.sockets[0].getsockname()[1]
    try:
        yield triton
    finally:
        server.close()
        for writer in tuple(triton.writers):
            writer.transport.abort()
        await triton.wait_until_open(0)


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"\r\nContent-Length: (\d+)", head)
    assert length is not None
    return head + await reader.readexactly(int(length.group(1)))


async def _unless_closed(answer: Awaitable[bytes], reader: asyncio.StreamReader) -> bytes:
    """Return the script's response, or nothing if the client closes first."""
    making = asyncio.ensure_future(answer)  # noqa: TID251 - owned here: awaited or cancelled below
    leaving = asyncio.ensure_future(reader.read(1))  # noqa: TID251
    try:
        await asyncio.wait({making, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return making.result() if making.done() else b""
    finally:
        for task in (making, leaving):
            task.cancel()
        await asyncio.wait({making, leaving})
