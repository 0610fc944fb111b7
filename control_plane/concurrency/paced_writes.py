"""Large writes to one transport, a piece in each turn of the event loop.

A socket of loopback takes whatever it is given, 16 MB of an HTTP/2 frame in one call, and that takes 6 ms. Used by the
connections to Triton.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

Piece = bytes | bytearray | memoryview

PIECE_BYTES = 256 * 1024
"""Most bytes that are written in one turn, in 0.1 ms."""

_JOIN_UP_TO_BYTES = 64 * 1024
"""Up to this size, one joined write is cheaper; uvloop's `writelines` alone costs 100 us."""


class PacedWriter:
    """Queue of what is written to one transport, of which it is given a piece in each turn in which its socket takes one.

    Its protocol passes on `pause_writing`, `resume_writing` and `connection_lost`.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.left: deque[Piece] = deque()
        """Pieces that the transport has not been given yet."""
        self._may_write = True
        self._is_due = False
        """Whether the next piece is written in the next turn."""

    def write(self, pieces: Sequence[Piece]) -> None:
        """Write these after what is left."""
        if not self.left and sum(map(len, pieces)) <= _JOIN_UP_TO_BYTES:
            self._transport.write(b"".join(pieces))
            return
        self.left.extend(pieces)
        if not self._is_due:
            self._write_piece()

    def pause(self) -> None:
        """The socket takes no more; the transport keeps the rest of the piece, without a copy."""
        self._may_write = False

    def resume(self) -> None:
        """The socket takes more."""
        self._may_write = True
        self._schedule()

    def clear(self) -> None:
        """Drop what is left, as the connection has ended."""
        self.left.clear()

    def _schedule(self) -> None:
        if self.left and self._may_write and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._write_due)

    def _write_due(self) -> None:
        self._is_due = False
        if self._transport.is_closing():
            self.clear()
        else:
            self._write_piece()

    def _write_piece(self) -> None:
        if self.left and self._may_write:
            self._transport.writelines(self._next_pieces())
            self._schedule()

    def _next_pieces(self) -> Iterable[Piece]:
        taken, room = list[Piece](), PIECE_BYTES
        while self.left and room > 0:
            piece = self.left.popleft()
            if len(piece) > room:
                view = memoryview(piece)
                self.left.appendleft(view[room:])
                piece = view[:room]
            taken.append(piece)
            room -= len(piece)
        return taken
