"""A TCP connection that takes its time: stands between a gateway and its store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_QUEUED_PIECES = 1024


class _Over(Exception):
    pass


class SlowLink:
    """Passes on to a port of this machine whatever comes, each way `delay_s` late."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self.delay_s = 0.0
        """May be changed at any time, from any thread."""
        self.port = 0

    async def serve(self, is_over: asyncio.Event, is_up: threading.Event) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                server = await asyncio.start_server(lambda *streams: self._relay(tasks, *streams), "127.0.0.1", 0)
                self.port = server.sockets[0].getsockname()[1]
                is_up.set()
                async with server:
                    await is_over.wait()
                raise _Over
        except* _Over:
            pass

    async def _relay(self, tasks: asyncio.TaskGroup, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        tasks.create_task(self._pass_on(reader, back, tasks))
        tasks.create_task(self._pass_on(there, writer, tasks))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tasks: asyncio.TaskGroup) -> None:
        now_s = asyncio.get_running_loop().time
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED_PIECES)
        tasks.create_task(self._write(pieces, writer))
        data = b" "
        while data:
            try:
                data = await reader.read(1 << 16)
            except OSError:
                data = b""
            await pieces.put((now_s() + self.delay_s, data))

    async def _write(self, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        now_s = asyncio.get_running_loop().time
        data = b" "
        try:
            while data:
                due_s, data = await pieces.get()
                await asyncio.sleep(due_s - now_s())
                writer.write(data)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@contextmanager
def slow_link(target_port: int) -> Iterator[SlowLink]:
    """In a thread of its own."""
    link, is_up = SlowLink(target_port), threading.Event()
    loop, is_over = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(link.serve(is_over, is_up),), name="slow-link")
    thread.start()
    assert is_up.wait(10)
    try:
        yield link
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join(10)
        assert not thread.is_alive()
        loop.close()
