"""Writes the answers of one HTTP/1.1 connection: large ones in pieces, small ones together with those of other connections.

Made by `frontends/http/connection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized

from control_plane.concurrency.turn_writes import TurnWrites
from control_plane.protocols.http1 import HttpAnswer, with_header

_WRITE_BYTES = 256 * 1024
"""Bytes of a large answer that are written at a time, since TLS encrypts each write in one go."""


class AnswerWriter:
    """Writer of one connection's answers to its transport; a connection that has none yet, or no more, writes nothing.

    Its protocol passes on `connection_made`, `connection_lost`, `pause_writing` and `resume_writing`.
    """

    def __init__(self, turn: TurnWrites, connected: Sized) -> None:
        self._turn = turn
        self._connected = connected
        self._transport: asyncio.Transport | None = None
        self._unsent = b""
        """An answer that is written at the end of this turn of the loop."""
        self._large_bytes = self._written_bytes = 0
        """Size of the large answer that is being written, and how much of it has been; 0 while there is none."""
        self.may_write = True
        """Whether the client reads what it is sent; `writable` wakes who waits for that."""
        self.writable = asyncio.Event()
        self.writable.set()

    @property
    def has_unsent(self) -> bool:
        """Whether an answer is put off to the end of this turn."""
        return bool(self._unsent)

    @property
    def progress(self) -> int:
        """Number that changes as the client reads; with each sixteenth of a large answer, which one that reads a byte at a
        time would hold for ever."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return (self._written_bytes - unsent) // (self._large_bytes // 16) if self._large_bytes else unsent

    def begin(self, transport: asyncio.Transport) -> None:
        """The connection has been made."""
        self._transport = transport

    def end(self) -> None:
        """The connection is lost."""
        self._transport = None

    def pause(self) -> None:
        """The client does not read."""
        self.may_write = False
        self.writable.clear()

    def resume(self) -> None:
        """The client reads again."""
        self.may_write = True
        self.writable.set()

    def write(self, data: bytes | memoryview) -> None:
        """Write now, after what was put off."""
        if self._unsent:
            self.flush()
        if self._transport is not None:
            self._transport.write(data)

    def write_soon(self, data: bytes) -> None:
        """Write an answer at the end of this turn of the loop, with those to others; at once if there are none."""
        if len(self._connected) == 1 or self._unsent:
            self.write(data)
        else:
            self._unsent = data
            self._turn.put_off(self)

    def flush(self) -> None:
        """See `turn_writes.Unsent`."""
        unsent, self._unsent = self._unsent, b""
        if unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.write(unsent)

    def write_head(self, answer: HttpAnswer, *, keep_alive: bool) -> None:
        """Write the head of an answer, alone: that is the answer to a HEAD request."""
        if keep_alive:
            self.write_soon(answer.head)
        else:
            self.write(_closing(answer).head)

    def write_last(self, answer: HttpAnswer) -> None:
        """Write a small answer after which the connection closes, in one piece."""
        self.write(_closing(answer).head + answer.body)

    async def write_large(self, answer: HttpAnswer, *, keep_alive: bool) -> None:
        """Write an answer in pieces, one in a turn of the loop, waiting for the client to read each."""
        self.write((answer if keep_alive else _closing(answer)).head)
        body = memoryview(answer.body)
        self._large_bytes, self._written_bytes = len(body), 0
        for at in range(0, len(body), _WRITE_BYTES):
            if at:
                await asyncio.sleep(0)  # a socket of loopback takes 4 MB at once
            self.write(body[at : at + _WRITE_BYTES])
            self._written_bytes = at + _WRITE_BYTES
            await self.writable.wait()
        self._large_bytes = 0


def _closing(answer: HttpAnswer) -> HttpAnswer:
    return with_header(answer, b"Connection: close")
