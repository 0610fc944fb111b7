"""Ends of the pieces in which what arrives on a connection is given to its parser: a head, a body, a chunk.

llhttp parses all that it is given, pipelined requests too, and cannot be stopped. So it is given one piece at a time,
which lets other connections have their turn in between. Used by `frontends/http/requests/reader`.
"""

from __future__ import annotations

import re

_SLICE_BYTES = 4096
"""Bytes that the parser is given at a time while the end of a head or chunk is unknown: so many may hold 700 chunks."""

_HEAD_END = b"\r\n\r\n"
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[^\r\n]*)?\r\n")


class PieceEnds:
    """Finder of where each piece ends, by the framing of one request after the other.

    It must never lose its place: by bytes within a chunk that look like a chunk's size, all that has arrived would become
    one piece.
    """

    __slots__ = ("_tail", "is_at_chunk", "missing_bytes")

    def __init__(self) -> None:
        self.missing_bytes = 0
        """Bytes to the end of the body, or of a chunk, whose size is known."""
        self.is_at_chunk = False
        """Whether the body is chunked, so that the size line of the next chunk follows those bytes."""
        self._tail = b""
        """The last bytes of what has no end yet: with them the end may begin."""

    def begin_body(self, body_bytes: int, *, is_chunked: bool) -> None:
        """The piece before was the end of a head, which a body of this framing follows."""
        self.missing_bytes, self.is_at_chunk = body_bytes, is_chunked

    def end(self, data: bytes, at: int) -> int:
        """Return where the piece that is at `at` ends, or what has arrived of it; the next one begins there."""
        if self.missing_bytes <= 0 and self.is_at_chunk:
            self._begin_chunk(data, at)
        if self.missing_bytes <= 0:
            return min(self._head_end(data, at), len(data))
        stop = min(at + self.missing_bytes, len(data))
        self.missing_bytes -= stop - at
        return stop

    def _begin_chunk(self, data: bytes, at: int) -> None:
        found = _CHUNK_SIZE.match(data, at)
        if found is None:
            self.is_at_chunk = False  # the size line is incomplete: the rest of this body is parsed slice by slice
            return
        chunk_bytes = int(found[1], 16)
        self.is_at_chunk = chunk_bytes > 0
        self.missing_bytes = found.end() + chunk_bytes + 2 - at

    def _head_end(self, data: bytes, at: int) -> int:
        """The end of the head, or of a body's trailer, that goes on at `at`, or of a slice of it."""
        tail = self._tail
        found = (tail + data[at : at + _SLICE_BYTES]).find(_HEAD_END) if tail else data.find(_HEAD_END, at, at + _SLICE_BYTES) - at
        if found >= 0:
            self._tail = b""
            return at - len(tail) + found + len(_HEAD_END)
        self._tail = (tail + data[at : at + _SLICE_BYTES])[1 - len(_HEAD_END) :]
        return at + _SLICE_BYTES
