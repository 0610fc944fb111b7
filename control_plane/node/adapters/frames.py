"""Frames of a connection between a gateway and a node, over asyncio's streams: `node/ports.Link`."""

from __future__ import annotations

import asyncio
import socket

from control_plane.node.domain.handshake import TAG_BYTES, FrameSeal, Handshake
from control_plane.node.domain.messages import LENGTH_BYTES, MAX_BYTES, MAX_FIRST_BYTES, Message, WrongMessage, decode, encode

_MAX_UNSENT_BYTES = 2 * MAX_BYTES
"""A peer that reads so slowly, or not at all, is cut off: what it should know would take this process's memory."""


class FrameLink:
    """One end of a connection: first with small frames, then, once `seal` was called, each with its tag."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._max_bytes = MAX_FIRST_BYTES
        self._sent: FrameSeal | None = None
        self._received: FrameSeal | None = None
        self.fleet = ""
        self.gateway = ""
        self.incarnation = ""
        writer.transport.set_write_buffer_limits(_MAX_UNSENT_BYTES)
        end: socket.socket = writer.get_extra_info("socket")
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = writer.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "?"

    def seal(self, handshake: Handshake | None, *, ours: bytes, theirs: bytes) -> None:
        """Accept large frames from here on, sealed if there is a secret; the sides are those of the
        handshake."""
        self._max_bytes = MAX_BYTES
        if handshake is not None:
            self._sent, self._received = FrameSeal(handshake.key(ours)), FrameSeal(handshake.key(theirs))

    def send(self, message: Message) -> None:
        self.send_body(encode(message))

    def send_body(self, body: bytes) -> None:
        """Send an encoded message."""
        if self._writer.is_closing():
            return
        tag = b"" if self._sent is None else self._sent.tag(body)
        self._writer.write((len(body) + len(tag)).to_bytes(LENGTH_BYTES) + body + tag)
        if self._writer.transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            self.close()

    async def receive(self) -> Message | None:
        body = await self.receive_body()
        return None if body is None else decode(body)

    async def receive_body(self) -> bytes | None:
        """Return the next encoded message; None when the connection is closed. Raises WrongMessage: it is too
        large, or not what the peer has sent."""
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES))
            if length > self._max_bytes + TAG_BYTES:
                raise WrongMessage(f"a frame of {length} bytes; at most {self._max_bytes} are read")
            frame = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return None
        if self._received is None:
            return frame
        body, tag = frame[:-TAG_BYTES], frame[-TAG_BYTES:]
        if not self._received.is_tag(body, tag):
            raise WrongMessage("a frame was changed on its way, or comes from somebody else")
        return body

    async def flush(self, *, timeout_s: float) -> None:
        """Wait until what was sent has left this process, for at most so long; not at all if the other end has closed the connection."""
        if self._writer.is_closing():
            return
        self._writer.transport.set_write_buffer_limits(0)
        try:
            await asyncio.wait_for(self._writer.drain(), timeout_s)
        except (OSError, TimeoutError):
            return

    def close(self) -> None:
        self._writer.transport.abort()
