"""Templates of request heads: recognise a head that differs from an earlier one in the values of per-request
fields (`per_request`) only.

The head is not parsed: between those values its bytes must be the same, so it means the same. Each template
has a key, the head without those fields, which all heads that it recognises share. Used to ask the verbatim
cache before a request is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from control_plane.protocols.http2.hpack import FIELD_OVERHEAD, STATIC, read_number, read_string
from control_plane.protocols.per_request import PerRequestFields

_LINE = re.compile(rb"\r\n([^:\r\n]+):([^\r\n]*)")
_LENGTH = re.compile(rb" ?(\d{1,6})")
_TIMEOUT = re.compile(rb"\d{1,8}[HMSmun]")
_MAX_FIELDS = 100
_MAX_BLOCK_BYTES = 2048
"""Largest block that a template is made of, since each connection holds one; gRPC's clients send about 200 bytes."""

_Values = tuple[tuple[re.Pattern[bytes], bytes], ...]
"""For each value that may differ what it must match, and the bytes from its end to the next one."""


class Http1Template:
    """Template of a request head of HTTP/1.1, which also finds the body's length: two requests may have bodies
    of different sizes."""

    __slots__ = ("_first", "_values", "key")

    def __init__(self, head: bytes, fields: PerRequestFields) -> None:
        """`head` is one that the parser has accepted, with the empty line at its end."""
        kept: list[bytes] = []
        values: list[tuple[re.Pattern[bytes], int, int]] = []
        at = 0
        for line in _LINE.finditer(head):
            name = line[1].lower()
            pattern = _LENGTH if name == b"content-length" else fields.get(name)
            if pattern is not None and pattern.fullmatch(line[2]) is not None:
                values.append((pattern, *line.span(2)))
                kept.append(head[at : line.start()])
                at = line.end()
        self.key = b"".join((*kept, head[at:]))
        self._first, self._values = _pieces(head, values)

    def match(self, head: bytes, start: int) -> tuple[int, int] | None:
        """Recognise a head that begins at `start`: its end, and the length of the body after it; else None."""
        if not head.startswith(self._first, start):
            return None
        at, body_bytes = start + len(self._first), 0
        for pattern, piece in self._values:
            found = pattern.match(head, at)
            if found is None or not head.startswith(piece, found.end()):
                return None
            at = found.end() + len(piece)
            if pattern is _LENGTH:
                body_bytes = int(found[1])
        return at, body_bytes


class Http2Template:
    """Template of the stateless header blocks that one client sends, made from the last one that differed."""

    __slots__ = ("_fields", "_first", "_max_bytes", "_room", "_values", "last_block", "last_key")

    def __init__(self, fields: PerRequestFields, *, max_bytes: int) -> None:
        """`max_bytes` limits what a block may expand to (`http2/hpack`)."""
        self._fields = fields
        self._max_bytes = max_bytes
        self._first = b""
        self.last_block = b""
        """The block that the template was made of, and its key: for callers who look for an equal one first."""
        self.last_key = b""
        self._values: _Values = ()
        self._room = 0

    def key(self, block: bytes) -> bytes:
        """The block without its per-request fields; where it is not sure what they are, the block itself."""
        if block != self.last_block:
            if len(block) > _MAX_BLOCK_BYTES:
                return block
            if not self._matches(block):
                self._learn(block)
        return self.last_key

    def _matches(self, block: bytes) -> bool:
        if not self._values or not block.startswith(self._first):
            return False
        at, room = len(self._first), self._room
        try:
            for pattern, piece in self._values:
                value, at = read_string(block, at)
                room -= len(value)
                if pattern.fullmatch(value) is None or not block.startswith(piece, at):
                    return False
                at += len(piece)
        except (IndexError, ValueError):
            return False
        # What expands to more than is allowed has to be refused, which the decoder does.
        return at == len(block) and room >= 0

    def _learn(self, block: bytes) -> None:
        self.last_block = self.last_key = self._first = block
        self._values = ()
        kept: list[bytes] = []
        values: list[tuple[re.Pattern[bytes], int, int]] = []
        at, room = 0, self._max_bytes
        try:
            for name, value, start, value_start, end in _fields_of(block):
                room -= len(name) + len(value) + FIELD_OVERHEAD
                pattern = self._fields.get(name)
                if pattern is not None and name == b"grpc-timeout":
                    pattern = _TIMEOUT
                # A field that is all in the static table has no bytes of its own that could differ.
                if pattern is not None and value_start and pattern.fullmatch(value) is not None:
                    room += len(value)
                    values.append((pattern, value_start, end))
                    kept.append(block[at:start])
                    at = end
        except (IndexError, ValueError):
            return
        if not values or room < sum(len(read_string(block, start)[0]) for _, start, _ in values):
            return
        self.last_key, self._room = b"".join((*kept, block[at:])), room
        self._first, self._values = _pieces(block, values)


def _pieces(head: bytes, values: list[tuple[re.Pattern[bytes], int, int]]) -> tuple[bytes, _Values]:
    """Split a head at the values, given as pattern, start and end."""
    starts = [start for _, start, _ in values] + [len(head)]
    rest = tuple((pattern, head[end:following]) for (pattern, _, end), following in zip(values, starts[1:], strict=True))
    return head[: starts[0]], rest


def _fields_of(block: bytes) -> Iterator[tuple[bytes, bytes, int, int, int]]:
    """For each field of a block that uses no dynamic table its name and value, where it starts, where its value
    starts (0: it has none of its own) and where it ends.

    Raises IndexError, ValueError.
    """
    at = len(block) - len(block.lstrip(b"\x20"))  # updates of the table's size to 0
    if at > 2:
        raise ValueError("the table's size changes too often")
    count = 0
    while at < len(block):
        start, first = at, block[at]
        count += 1
        if count > _MAX_FIELDS or first & 0xE0 == 0x20:
            raise ValueError("a block that is refused")
        if first & 0x80:
            index, at = read_number(block, at, 0x7F)
            name, value = _static(index)
            yield name, value, start, 0, at
            continue
        index, at = read_number(block, at, 0x3F if first & 0x40 else 0x0F)
        if index:
            name = _static(index)[0]
        else:
            name, at = read_string(block, at)
        value_start = at
        value, at = read_string(block, at)
        yield name, value, start, value_start, at


def _static(index: int) -> tuple[bytes, bytes]:
    if index <= 0:
        raise ValueError("a field of index 0")
    return STATIC[index - 1]
