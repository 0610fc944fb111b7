"""Codec of RESP2, the protocol of Redis: commands into bytes, bytes into answers.

Knows no command. Used by `cache/adapters/redis_cache_connection`. Source:
https://redis.io/docs/latest/develop/reference/protocol-spec/, without arrays within arrays, which no command
that is used answers with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_SIMPLE, _ERROR, _NUMBER, _STRING, _ARRAY = b"+-:$*"
_NULL = b"-1"
"""Length of a string or array that is not there."""

_MAX_LINE_BYTES = 64 * 1024
_MAX_LENGTH = 512 * 2**20
"""Most bytes of a string, and most elements of an array; Redis's own limit of strings
(`proto-max-bulk-len`)."""
_MAX_DIGITS = 19
"""Digits of a number of 64 bits."""


class RespError(Exception):
    """Bytes that are no RESP2, after which the connection is unusable. The text quotes none of them."""


class ReplyError(Exception):
    """Error reply of a Redis, which refuses a command. The text is Redis's, without the code before it."""


Scalar = bytes | int | ReplyError | None
Answer = Scalar | list[Scalar]
"""A string, number or error, None for what is not there, or an array of these."""


def pack_command(*words: bytes) -> bytes:
    """Encode a command."""
    return b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))


class _ArrayHead(NamedTuple):
    """Beginning of an array."""

    size: int


class RespReader:
    """Incremental reader of one connection's answers.

    An array grows as its elements arrive, and the length that it announces allocates nothing. hiredis makes a
    list of that length at once: freeing one of 2 * 10^8 elements, none of them sent, took 0.4 s.
    """

    __slots__ = ("_array", "_buffer", "_missing")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._array: list[Scalar] = []
        self._missing = 0
        """Elements of `_array` that have not arrived; 0 while no array has begun."""

    def feed(self, data: bytes) -> list[Answer]:
        """Add data that arrived and return the answers that it completes. Raises RespError."""
        self._buffer += data
        answers: list[Answer] = []
        for element in self._elements():
            if isinstance(element, _ArrayHead):
                if self._missing:
                    raise RespError("an array within an array")
                self._array, self._missing = [], element.size
                if not element.size:
                    answers.append(self._array)
            elif self._missing:
                self._array.append(element)
                self._missing -= 1
                if not self._missing:
                    answers.append(self._array)
            else:
                answers.append(element)
        return answers

    def _elements(self) -> Iterator[Scalar | _ArrayHead]:
        """Cut the complete elements out of the buffer."""
        buffer, at = self._buffer, 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            kind, line, end = buffer[at], bytes(buffer[at + 1 : end]), end + 2
            if kind == _STRING and line != _NULL:
                stop = end + _length(line)
                if len(buffer) < stop + 2:
                    break
                if buffer[stop : stop + 2] != b"\r\n":
                    raise RespError("a string that is longer than its length")
                # Of a slice of the buffer itself, `bytes` would make a second copy.
                yield bytes(memoryview(buffer)[end:stop])
                at = stop + 2
            else:
                yield _read_line(kind, line)
                at = end
        else:
            if len(buffer) - at > _MAX_LINE_BYTES:
                raise RespError("a line without end")
        # Once for all: cutting each element off by itself would move the rest each time.
        del buffer[:at]


def _read_line(kind: int, line: bytes) -> Scalar | _ArrayHead:
    """Read an element that is one line."""
    if kind == _SIMPLE:
        return line
    if kind == _ERROR:
        code, _, text = line.decode("utf-8", "replace").partition(" ")
        # Returned, not raised: the answers to the rest of the pipeline follow it.
        return ReplyError(text if text and code.isupper() else f"{code} {text}".strip())
    if kind == _NUMBER and line.removeprefix(b"-").isdigit() and len(line) <= 1 + _MAX_DIGITS:
        return int(line)
    if kind in (_STRING, _ARRAY) and line == _NULL:
        return None
    if kind == _ARRAY:
        return _ArrayHead(_length(line))
    raise RespError("an element of an unknown type")


def _length(line: bytes) -> int:
    if not line.isdigit() or len(line) > _MAX_DIGITS or (length := int(line)) > _MAX_LENGTH:
        raise RespError("a length that is none or too large")
    return length
