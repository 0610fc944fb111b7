"""Incremental parser of Triton's HTTP/1.1 responses; knows no sockets. Used by the HTTP adapter of `triton`.

Triton is our own child or a configured peer, so this parses the well-formed answers that Triton sends and is
no general client: anything else is an error and costs the connection. The head is kept unparsed, to be passed
on byte for byte, but for fields of the connection to Triton, or to a proxy before it.
"""

from __future__ import annotations

import re
from math import inf
from typing import NamedTuple

from control_plane.protocols.http1 import HttpAnswer

_MAX_HEAD_BYTES = 64 * 1024
_STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n", re.IGNORECASE)
_IS_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*\r\n", re.IGNORECASE)
_OF_CONNECTION = re.compile(rb"\r\n(?:connection|keep-alive|proxy-connection):[^\r\n]*", re.IGNORECASE)
"""Fields that hold for one connection (RFC 9110, 7.6.1): a client would close its own, and each that is given the answer
from the cache."""
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,8}\r\n")
_MAX_SIZE_LINE_BYTES = 10


class AnswerError(ValueError):
    """The bytes are not a response of the kind that this parser accepts."""


class ChunkedHead(NamedTuple):
    """The head of a chunked answer; `rest` is the part of the chunks that arrived with it."""

    status: int
    head: bytes
    rest: bytes


class AnswerReader:
    """Response parser of one connection; `feed` returns each answer when it is complete.

    Triton answers requests of one kind with equal heads, so the last head is kept: if the next answer begins
    with the same bytes, its head is not parsed again.
    """

    __slots__ = ("_body", "_body_bytes", "_buffer", "_head", "_max_body_bytes", "_status", "_told_head", "closes")

    def __init__(self, *, max_body_bytes: float = inf) -> None:
        self._max_body_bytes = max_body_bytes
        self._buffer = bytearray()
        """The incomplete head of the next answer."""
        self._head, self._told_head, self._status = b"", b"", 0
        self._body: bytearray | None = None
        """The incomplete body, once its head has been parsed; it becomes the answer's body without being
        copied."""
        self._body_bytes = 0
        self.closes = False
        """Whether Triton announced that it closes the connection after this answer."""

    def feed(self, data: bytes) -> HttpAnswer | ChunkedHead | None:
        """Parse data that arrived; returns an answer when it is complete.

        Raises AnswerError, after which the connection is unusable. After a ChunkedHead, feed a `ChunkReader`
        until it is done.
        """
        if self._body is None:
            # The common case: one read brings a whole answer with the same head and length as the last one.
            if not self._buffer and self._head and len(data) == len(self._head) + self._body_bytes and data.startswith(self._head):
                return HttpAnswer(self._status, self._told_head, data[len(self._head) :])
            self._buffer += data
            chunked = self._read_head()
            if chunked is not None or self._body is None:
                return chunked
        else:
            self._body += data
        missing = self._body_bytes - len(self._body)
        if missing > 0:
            return None
        # The connection has one request at a time, so nobody has asked for these.
        if missing < 0:
            raise AnswerError(f"{-missing} bytes follow the answer")
        body, self._body = self._body, None
        return HttpAnswer(self._status, self._told_head, body)

    def _read_head(self) -> ChunkedHead | None:
        """Parse the head if it is complete: begin the body, or return the head of a chunked answer."""
        end = self._buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise AnswerError(f"the head exceeds {_MAX_HEAD_BYTES} bytes")
            return None
        head, rest = bytes(self._buffer[:end]), self._buffer[end:]
        self._buffer = bytearray()
        self.closes = _CLOSES.search(head) is not None
        length = _CONTENT_LENGTH.search(head)
        # With both framings, or with none, two readers may see different ends of the answer (RFC 9112, 6.3).
        if not _STATUS_LINE.match(head) or (length is None) is not (_IS_CHUNKED.search(head) is not None):
            raise AnswerError(f"not an answer with a Content-Length or in chunks: {head[:80]!r}")
        told_head = _OF_CONNECTION.sub(b"", head)
        # Without a length the head recognises no later answer.
        if length is None:
            self._head = b""
            return ChunkedHead(int(head[9:12]), told_head, bytes(rest))
        if int(length.group(1)) > self._max_body_bytes:
            raise AnswerError(f"its body has {int(length.group(1))} bytes, of {self._max_body_bytes} at most")
        self._head, self._told_head, self._status = head, told_head, int(head[9:12])
        self._body, self._body_bytes = rest, int(length.group(1))
        return None


class ChunkReader:
    """Decoder of one chunked body as Triton sends it: without chunk extensions and trailers."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.is_done = False

    def feed(self, data: bytes) -> list[bytes]:
        """Add data; return the chunks that are complete now. Raises AnswerError."""
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
