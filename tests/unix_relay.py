"""TCP ports in front of Unix sockets, for clients that know no others (tritonclient over HTTP, perf_analyzer, `--triton-url`).

Bytes go through as they come, the end of what one side sends goes to the other as that, and a reset as an abrupt end: what a test sees of
the server is the server's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any, TypeVar

from control_plane.triton.adapters.connecting import short_path

_CHUNK_BYTES = 2**18
_PATIENCE_S = 10.0

T = TypeVar("T")


class UnixRelay:
    """Ports on loopback, each of one socket; they work in a thread of their own until they are closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="unix-relay", daemon=True)
        self._thread.start()
        self._paths = ExitStack()
        self._servers: dict[str, asyncio.Server] = {}
        self._relaying: set[asyncio.Task[None]] = set()

    def port_of(self, path: str) -> int:
        """The port that leads to the socket at `path`."""
        if path not in self._servers:
            self._servers[path] = self._do(self._listen(self._paths.enter_context(short_path(path))))
        port: int = self._servers[path].sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()
        self._paths.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    async def _listen(self, path: str) -> asyncio.Server:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._relaying.add(task)
            try:
                await _relay(reader, writer, path)
            except* (OSError, asyncio.CancelledError):
                pass  # one side is gone: so is the other
            finally:
                writer.transport.abort()
                self._relaying.discard(task)

        return await asyncio.start_server(relay, "127.0.0.1", 0)

    async def _end(self) -> None:
        for server in self._servers.values():
            server.close()
        for task in self._relaying:
            task.cancel()
        while self._relaying:
            await asyncio.sleep(0.01)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    server_reader, server_writer = await asyncio.open_unix_connection(path)
    try:
        async with asyncio.TaskGroup() as both:
            onward = both.create_task(_pump(reader, server_writer))
            await _pump(server_reader, writer)
            onward.cancel()  # a server that has ended its side has closed
    finally:
        server_writer.transport.abort()
    writer.close()
    await writer.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
