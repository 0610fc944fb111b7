"""Reads the HTTP/1.1 answers of Triton's from the bytes of a connection; no sockets.

Triton is our own child or a configured peer, so this is a reader of well-formed answers, not a general client: anything
else is an error and costs the connection. It keeps the head as it came, so that it can go on byte for byte.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from control_plane.protocols.http1 import HttpAnswer

_MAX_HEAD_BYTES = 64 * 1024
_STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n", re.IGNORECASE)
_IS_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*\r\n", re.IGNORECASE)
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,8}\r\n")
_MAX_SIZE_LINE_BYTES = 10


class AnswerError(ValueError):
    """What came is not an answer that this reader knows."""


class ChunkedHead(NamedTuple):
    """The head of an answer whose body follows in chunks, and what has come of them."""

    status: int
    head: bytes
    rest: bytes


class AnswerReader:
    """Collects the answers of one connection, one at a time; `feed` returns one when it is whole.

    Triton answers requests of one kind with one head, so the last head is kept: equal bytes are not read a second time.
    """

    __slots__ = ("_body", "_body_bytes", "_buffer", "_head", "closes")

    def __init__(self) -> None:
        self._buffer = bytearray()
        """What has come of a head."""
        self._head = b""
        self._body: bytearray | None = None
        """What has come of a body, once its head has been read; it becomes the answer's without being copied."""
        self._body_bytes = 0
        self.closes = False
        """Whether Triton announced that it closes the connection after this answer."""

    def feed(self, data: bytes) -> HttpAnswer | ChunkedHead | None:
        """Take what arrived. Raises AnswerError; nothing can be read after that.

        After a ChunkedHead, what arrives is a ChunkReader's until it is done.
        """
        if self._body is None:
            if not self._buffer and self._head and len(data) == len(self._head) + self._body_bytes and data.startswith(self._head):
                return HttpAnswer(int(self._head[9:12]), self._head, data[len(self._head) :])
            self._buffer += data
            chunked = self._read_head()
            if chunked is not None or self._body is None:
                return chunked
        else:
            self._body += data
        missing = self._body_bytes - len(self._body)
        if missing > 0:
            return None
        if missing < 0:
            raise AnswerError(f"{-missing} bytes follow the answer")
        body, self._body = self._body, None
        return HttpAnswer(int(self._head[9:12]), self._head, body)

    def _read_head(self) -> ChunkedHead | None:
        """Begin the body when the head is whole, or return a chunked answer's."""
        end = self._buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise AnswerError(f"the head exceeds {_MAX_HEAD_BYTES} bytes")
            return None
        head, rest = bytes(self._buffer[:end]), self._buffer[end:]
        self._buffer = bytearray()
        self.closes = _CLOSES.search(head) is not None
        length = _CONTENT_LENGTH.search(head)
        if not _STATUS_LINE.match(head) or (length is None) is not (_IS_CHUNKED.search(head) is not None):
            raise AnswerError(f"not an answer with a Content-Length or in chunks: {head[:80]!r}")
        if length is None:
            self._head = b""
            return ChunkedHead(int(head[9:12]), head, bytes(rest))
        self._head, self._body, self._body_bytes = head, rest, int(length.group(1))
        return None


class ChunkReader:
    """Takes the chunks of one answer apart; as Triton sends them, without extensions and trailers."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.is_done = False

    def feed(self, data: bytes) -> list[bytes]:
        """The chunks that have become whole. Raises AnswerError."""
        self._buffer += data
        chunks = []
        while not self.is_done and (size := self._next_size()) is not None:
            line_bytes = self._buffer.index(b"\n") + 1
            end = line_bytes + size
            if len(self._buffer) < end + 2:
                break
            if self._buffer[end : end + 2] != b"\r\n":
                raise AnswerError("a chunk is longer than its size")
            if size:
                chunks.append(bytes(self._buffer[line_bytes:end]))
            del self._buffer[: end + 2]
            self.is_done = size == 0
        if self.is_done and self._buffer:
            raise AnswerError(f"{len(self._buffer)} bytes follow the last chunk")
        return chunks

    def _next_size(self) -> int | None:
        match = _CHUNK_SIZE.match(self._buffer)
        if match is not None:
            return int(match.group()[:-2], 16)
        if len(self._buffer) >= _MAX_SIZE_LINE_BYTES or b"\n" in self._buffer:
            raise AnswerError(f"not a chunk's size: {bytes(self._buffer[:_MAX_SIZE_LINE_BYTES])!r}")
        return None
