"""The socket between the parent process and one worker, which carries whole messages both ways."""

from __future__ import annotations

import asyncio
import socket

from control_plane.workers.codec import LENGTH_BYTES, decode, encode
from control_plane.workers.messages import Message


class WorkerLink:
    """One end of the socket between parent and worker: whole messages in, whole messages out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> WorkerLink:
        """Make a link over one end of a socket pair, which it then owns."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: Message) -> None:
        """Send a message without waiting; it is dropped if the other end is closed."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def receive(self) -> Message | None:
        """The next message; None when the other end is closed."""
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES))
            return decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def flush(self) -> None:
        """Wait until the kernel has everything that was sent; return at once if the other end is closed."""
        if self._writer.is_closing():
            return
        self._writer.transport.set_write_buffer_limits(0)  # so that `drain` waits until the buffer is empty
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    def close(self) -> None:
        self._writer.close()
