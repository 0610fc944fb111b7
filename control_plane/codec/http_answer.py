"""Reads one HTTP/1.1 answer of Triton's from the bytes of a connection; no sockets.

Triton is our own child or a configured peer, so this is a reader of well-formed answers, not a general client: anything
else is an error and costs the connection. It keeps the head as it came, so that it can go on byte for byte.
"""

from __future__ import annotations

import re

from control_plane.codec.http_message import HttpAnswer

_MAX_HEAD_BYTES = 64 * 1024
_STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*\r\n", re.IGNORECASE)


class AnswerError(ValueError):
    """What came is not an answer that this reader knows."""


class AnswerReader:
    """Collects one answer; `feed` returns it when it is whole."""

    __slots__ = ("_body_bytes", "_buffer", "_head_bytes", "closes")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head_bytes = 0
        self._body_bytes = 0
        self.closes = False
        """Whether Triton announced that it closes the connection after this answer."""

    def feed(self, data: bytes) -> HttpAnswer | None:
        """Take what arrived. Raises AnswerError."""
        self._buffer += data
        if not self._head_bytes and not self._read_head():
            return None
        missing = self._head_bytes + self._body_bytes - len(self._buffer)
        if missing > 0:
            return None
        if missing < 0:
            raise AnswerError(f"{-missing} bytes follow the answer")
        head = bytes(self._buffer[: self._head_bytes])
        return HttpAnswer(int(head[9:12]), head, bytes(self._buffer[self._head_bytes :]))

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise AnswerError(f"the head exceeds {_MAX_HEAD_BYTES} bytes")
            return False
        head = bytes(self._buffer[: end + 4])
        length = _CONTENT_LENGTH.search(head)
        if not _STATUS_LINE.match(head) or length is None:
            raise AnswerError(f"not an answer with a Content-Length: {head[:80]!r}")
        self._head_bytes = end + 4
        self._body_bytes = int(length.group(1))
        self.closes = _CLOSES.search(head) is not None
        return True
