"""HTTP client of callers that hand in jobs: idle connections are used again, and a failure is told as what it is."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

FAILURES = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, TimeoutError)
"""What `Client.call` raises where there is no answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to one HTTP request."""

    status: int
    fields: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A tenant's client of several gateways."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._idle: dict[str, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = defaultdict(list)

    async def call(
        self, address: str, method: str, path: str, body: bytes = b"", fields: Mapping[str, str] | None = None, *, timeout_s: float = 10.0
    ) -> Reply:
        """Ask once. Raises one of FAILURES."""
        host, _, port = address.rpartition(":")
        idle = self._idle[address]
        async with asyncio.timeout(timeout_s):
            reader, writer = idle.pop() if idle else await asyncio.open_connection(host, int(port))
            is_over = False
            try:
                own = {"Host": "localhost", "x-api-key": self._key, "Content-Length": str(len(body)), **(fields or {})}
                head = "".join(f"{name}: {value}\r\n" for name, value in own.items())
                writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
                reply = await _read(reader)
                is_over = reply.fields.get("connection") != "close"
            finally:
                if is_over:
                    idle.append((reader, writer))
                else:  # an answer given up on would be taken for the next one's
                    writer.transport.abort()
        return reply

    def close(self) -> None:
        for idle in self._idle.values():
            for _, writer in idle:
                writer.transport.abort()
        self._idle.clear()


async def _read(reader: asyncio.StreamReader) -> Reply:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if fields.get("transfer-encoding") == "chunked":
        return Reply(int(first.split()[1]), fields, b"".join([chunk async for chunk in _chunks(reader)]))
    return Reply(int(first.split()[1]), fields, await reader.readexactly(int(fields.get("content-length", "0"))))


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
