"""HPACK decoder (RFC 7541) with limits on what a block may expand to; used by `protocols/http2/headers`.

The library `hpack` takes about 5 us for a field and has no limit on the number of fields; a head that was not
seen before, such as any with a `traceparent`, took 100 us. Here the limits are checked while a block is
decoded, since a few bytes can stand for many (an "HPACK bomb"). The tables of Huffman codes and static fields
are that library's.
"""

from __future__ import annotations

from collections import deque

from hpack.table import HeaderTable

from control_plane.protocols.http2.huffman import decode_huffman

Fields = tuple[tuple[bytes, bytes], ...]
"""Names and values; names in lower case, as HTTP/2 requires."""

STATIC: Fields = tuple(HeaderTable.STATIC_TABLE)
FIELD_OVERHEAD = 32
"""Bytes that are counted for each field in addition to its text (RFC 7541, 4.1; RFC 9113, 6.5.2)."""

_DEFAULT_TABLE_BYTES = 4096
_MAX_RESIZES = 2
"""Most table size updates at the beginning of a block (RFC 7541, 4.2)."""

_MAX_NUMBER_BYTES = 4
"""Most bytes of a number after its prefix; no length or index within our limits needs more."""

_INDEXED, _KEPT, _RESIZE = 0x80, 0x40, 0x20
_HUFFMAN = 0x80


class HeaderListTooLarge(ValueError):
    """A block expands to more fields, or more bytes of fields, than are allowed."""


class HpackReader:
    """HPACK decoder of one direction of a connection, with its dynamic table."""

    __slots__ = ("_kept", "_kept_bytes", "_max_bytes", "_max_fields", "max_table_bytes", "table_bytes")

    def __init__(self, *, max_bytes: int, max_fields: int) -> None:
        self._max_bytes = max_bytes
        self._max_fields = max_fields
        self._kept: deque[tuple[bytes, bytes]] = deque()
        self._kept_bytes = 0
        self.max_table_bytes = _DEFAULT_TABLE_BYTES
        """Limit of the dynamic table that we have announced (SETTINGS_HEADER_TABLE_SIZE)."""
        self.table_bytes = _DEFAULT_TABLE_BYTES
        """Size of the dynamic table that the peer has chosen, within our limit."""

    def read(self, block: bytes) -> Fields:
        """Decode a complete block.

        Raises HeaderListTooLarge, and ValueError or IndexError for an invalid block; the dynamic table is
        lost then.
        """
        at, end = self._read_sizes(block), len(block)
        fields: list[tuple[bytes, bytes]] = []
        room = self._max_bytes
        while at < end:
            first = block[at]
            if first & _INDEXED:
                index, at = read_number(block, at, 0x7F)
                field = self._field(index)
            else:
                field, at = self._literal(block, at, first)
            # Checked after each field: an indexed field of one byte can stand for kilobytes in the table.
            room -= len(field[0]) + len(field[1]) + FIELD_OVERHEAD
            if room < 0:
                raise HeaderListTooLarge(f"more than {self._max_bytes} bytes")
            fields.append(field)
            if len(fields) > self._max_fields:
                raise HeaderListTooLarge(f"more than {self._max_fields} fields")
        return tuple(fields)

    def _read_sizes(self, block: bytes) -> int:
        """Apply the table size updates at the beginning of a block; returns the position of the first
        field."""
        at = count = 0
        while at < len(block) and block[at] & 0xE0 == _RESIZE:
            size, at = read_number(block, at, 0x1F)
            count += 1
            if size > self.max_table_bytes or count > _MAX_RESIZES:
                raise ValueError(f"a table of {size} bytes; {self.max_table_bytes} are allowed, and {_MAX_RESIZES} changes at most")
            self.table_bytes = size
            self._shrink(size)
        # Once we allow less, the peer's next block has to begin with the change (RFC 7541, 4.2). Peers that never use the
        # table (.NET, nginx) leave that out. Of one that does use it, what it refers to is not there any more: an error.
        if self.table_bytes > self.max_table_bytes:
            self.table_bytes = self.max_table_bytes
            self._shrink(self.max_table_bytes)
        return at

    def _literal(self, block: bytes, at: int, first: int) -> tuple[tuple[bytes, bytes], int]:
        if first & 0xE0 == _RESIZE:
            raise ValueError("the table's size changes behind a field")
        is_kept = bool(first & _KEPT)
        index, at = read_number(block, at, 0x3F if is_kept else 0x0F)
        if index:
            name = self._field(index)[0]
        else:
            name, at = read_string(block, at)
        value, at = read_string(block, at)
        if is_kept:
            self._keep((name, value))
        return (name, value), at

    def _field(self, index: int) -> tuple[bytes, bytes]:
        if index <= 0:
            raise ValueError("a field of index 0")
        return STATIC[index - 1] if index <= len(STATIC) else self._kept[index - len(STATIC) - 1]

    def _keep(self, field: tuple[bytes, bytes]) -> None:
        size = len(field[0]) + len(field[1]) + FIELD_OVERHEAD
        # A field larger than the whole table empties it and is not added (RFC 7541, 4.4).
        self._shrink(max(0, self.table_bytes - size))
        if size <= self.table_bytes:
            self._kept.appendleft(field)
            self._kept_bytes += size

    def _shrink(self, most: int) -> None:
        while self._kept_bytes > most:
            name, value = self._kept.pop()
            self._kept_bytes -= len(name) + len(value) + FIELD_OVERHEAD


def read_number(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Decode an integer whose prefix is the bits of `mask`; returns it and its end (RFC 7541, 5.1)."""
    number = block[at] & mask
    at += 1
    if number < mask:
        return number, at
    for shift in range(0, 7 * _MAX_NUMBER_BYTES, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number that is too large")


def read_string(block: bytes, at: int) -> tuple[bytes, int]:
    """Decode a string literal; returns it and its end (RFC 7541, 5.2)."""
    is_coded = block[at] & _HUFFMAN
    size, at = read_number(block, at, 0x7F)
    stop = at + size
    if stop > len(block):
        raise ValueError("a string that is cut off")
    return decode_huffman(block[at:stop]) if is_coded else block[at:stop], stop
