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
    """Collects the answers of one connection, one at a time; `feed` returns one when it is whole.

    Triton answers requests of one kind with one head, so the last head is kept: equal bytes are not read a second time.
    """

    __slots__ = ("_body_bytes", "_buffer", "_head", "closes")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head = b""
        self._body_bytes = 0
        self.closes = False
        """Whether Triton announced that it closes the connection after this answer."""

    def feed(self, data: bytes) -> HttpAnswer | None:
        """Take what arrived. Raises AnswerError; nothing can be read after that."""
        if not self._buffer:
            if self._head and len(data) == len(self._head) + self._body_bytes and data.startswith(self._head):
                return HttpAnswer(int(self._head[9:12]), self._head, data[len(self._head) :])
            self._head = b""
        self._buffer += data
        if not self._head and not self._read_head():
            return None
        missing = len(self._head) + self._body_bytes - len(self._buffer)
        if missing > 0:
            return None
        if missing < 0:
            raise AnswerError(f"{-missing} bytes follow the answer")
        body = bytes(memoryview(self._buffer)[len(self._head) :])
        self._buffer = bytearray()
        return HttpAnswer(int(self._head[9:12]), self._head, body)

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
        self._head = head
        self._body_bytes = int(length.group(1))
        self.closes = _CLOSES.search(head) is not None
        return True
