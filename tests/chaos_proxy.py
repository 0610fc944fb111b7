"""A TCP proxy that misbehaves on demand: stands between a gateway and a server of this machine."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_QUEUED_PIECES = 1024
_ABORT = struct.pack("ii", 1, 0)


class _Over(Exception):
    pass


class ChaosProxy:
    """Passes on to a port of this machine whatever comes. Its attributes may be changed at any time, from any thread."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._streams: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self.port = 0
        self.delay_s = 0.0
        """Each way."""
        self.is_stalled = False
        """Connections are accepted, and nothing is passed on."""
        self.is_refusing = False
        """Connections are accepted, and closed at once."""
        self.answer: Callable[[bytes], bytes] | None = None
        """What is passed on instead of a piece of an answer."""

    def cut(self, *, by_reset: bool = False) -> None:
        """End every connection there is."""
        self._loop.call_soon_threadsafe(self._cut, by_reset)

    def _cut(self, by_reset: bool) -> None:
        for writer in list(self._streams):
            if by_reset:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            writer.transport.abort()

    async def serve(self, is_over: asyncio.Event, is_up: threading.Event) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                server = await asyncio.start_server(lambda *streams: self._relay(tasks, *streams), "127.0.0.1", 0)
                self.port = server.sockets[0].getsockname()[1]
                is_up.set()
                async with server:
                    await is_over.wait()
                    self._cut(by_reset=False)
                raise _Over
        except* _Over:
            pass

    async def _relay(self, tasks: asyncio.TaskGroup, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.is_refusing:
                raise ConnectionRefusedError
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        self._streams |= {writer, back}
        tasks.create_task(self._pass_on(reader, back, tasks, is_answer=False))
        tasks.create_task(self._pass_on(there, writer, tasks, is_answer=True))

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tasks: asyncio.TaskGroup, *, is_answer: bool
    ) -> None:
        now_s = asyncio.get_running_loop().time
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED_PIECES)
        tasks.create_task(self._write(pieces, writer))
        data = b" "
        while data:
            try:
                data = await reader.read(1 << 16)
            except OSError:
                data = b""
            change = self.answer if is_answer and data else None
            await pieces.put((now_s() + self.delay_s, change(data) if change is not None else data))

    async def _write(self, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        now_s = asyncio.get_running_loop().time
        data = b" "
        try:
            while data:
                due_s, data = await pieces.get()
                await asyncio.sleep(due_s - now_s())
                while self.is_stalled:
                    await asyncio.sleep(0.005)
                writer.write(data)
        finally:
            self._streams.discard(writer)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@contextmanager
def chaos_proxy(target_port: int) -> Iterator[ChaosProxy]:
    """In a thread of its own."""
    proxy, is_up = ChaosProxy(target_port), threading.Event()
    loop, is_over = proxy._loop, asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(proxy.serve(is_over, is_up),), name="chaos-proxy")
    thread.start()
    assert is_up.wait(100)
    try:
        yield proxy
    finally:
        proxy.is_stalled = False
        loop.call_soon_threadsafe(is_over.set)
        thread.join(100)
        assert not thread.is_alive()
        loop.close()
