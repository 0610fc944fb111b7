"""HPACK as a peer writes it (RFC 7541): the fields of a header block, and the table that its next block may refer to.

hpack reads a field in about 5 us and knows no limit of fields; a head that was not seen before, as each is that carries a `traceparent`,
took 100 us. The limits here hold while a block is read, whatever its few bytes stand for. Tables of codes and static fields are hpack's.
"""

from __future__ import annotations

from collections import deque

from hpack.table import HeaderTable

from control_plane.protocols.http2.huffman import decode_huffman

Fields = tuple[tuple[bytes, bytes], ...]
"""Names in lower case, as HTTP/2 has them."""

_STATIC: Fields = tuple(HeaderTable.STATIC_TABLE)
_FIELD_OVERHEAD = 32
"""That RFC 7541, 4.1 and RFC 9113, 6.5.2 count for each field beside its text."""

_DEFAULT_TABLE_BYTES = 4096
_MAX_RESIZES = 2
"""At the beginning of a block (RFC 7541, 4.2)."""

_MAX_NUMBER_BYTES = 4
"""Beyond its prefix; no length or index that we take needs more."""

_INDEXED, _KEPT, _RESIZE = 0x80, 0x40, 0x20
_HUFFMAN = 0x80


class HeaderListTooLarge(ValueError):
    """A block stands for more fields, or more bytes of them, than are taken."""


class HpackReader:
    """Decoder of one direction's header blocks, in order."""

    __slots__ = ("_kept", "_kept_bytes", "_max_bytes", "_max_fields", "max_table_bytes", "table_bytes")

    def __init__(self, *, max_bytes: int, max_fields: int) -> None:
        self._max_bytes = max_bytes
        self._max_fields = max_fields
        self._kept: deque[tuple[bytes, bytes]] = deque()
        self._kept_bytes = 0
        self.max_table_bytes = _DEFAULT_TABLE_BYTES
        """What we allow the peer's table to hold."""
        self.table_bytes = _DEFAULT_TABLE_BYTES
        """What the peer lets it hold."""

    def read(self, block: bytes) -> Fields:
        """The fields of a whole block. Raises HeaderListTooLarge; ValueError or IndexError when it cannot be read: the table is lost."""
        at, end = self._read_sizes(block), len(block)
        fields: list[tuple[bytes, bytes]] = []
        room = self._max_bytes
        while at < end:
            first = block[at]
            if first & _INDEXED:
                index, at = _number(block, at, 0x7F)
                field = self._field(index)
            else:
                field, at = self._literal(block, at, first)
            room -= len(field[0]) + len(field[1]) + _FIELD_OVERHEAD
            if room < 0:
                raise HeaderListTooLarge(f"more than {self._max_bytes} bytes")
            fields.append(field)
            if len(fields) > self._max_fields:
                raise HeaderListTooLarge(f"more than {self._max_fields} fields")
        return tuple(fields)

    def _read_sizes(self, block: bytes) -> int:
        """Where the fields begin, behind what changes the table."""
        at = count = 0
        while at < len(block) and block[at] & 0xE0 == _RESIZE:
            size, at = _number(block, at, 0x1F)
            count += 1
            if size > self.max_table_bytes or count > _MAX_RESIZES:
                raise ValueError(f"a table of {size} bytes; {self.max_table_bytes} are allowed, and {_MAX_RESIZES} changes at most")
            self.table_bytes = size
            self._shrink(size)
        if self.table_bytes > self.max_table_bytes:
            raise ValueError(f"a table of {self.table_bytes} bytes is kept; {self.max_table_bytes} are allowed")
        return at

    def _literal(self, block: bytes, at: int, first: int) -> tuple[tuple[bytes, bytes], int]:
        if first & 0xE0 == _RESIZE:
            raise ValueError("the table's size changes behind a field")
        is_kept = bool(first & _KEPT)
        index, at = _number(block, at, 0x3F if is_kept else 0x0F)
        if index:
            name = self._field(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        if is_kept:
            self._keep((name, value))
        return (name, value), at

    def _field(self, index: int) -> tuple[bytes, bytes]:
        if index <= 0:
            raise ValueError("a field of index 0")
        return _STATIC[index - 1] if index <= len(_STATIC) else self._kept[index - len(_STATIC) - 1]

    def _keep(self, field: tuple[bytes, bytes]) -> None:
        size = len(field[0]) + len(field[1]) + _FIELD_OVERHEAD
        self._shrink(max(0, self.table_bytes - size))
        if size <= self.table_bytes:
            self._kept.appendleft(field)
            self._kept_bytes += size

    def _shrink(self, most: int) -> None:
        while self._kept_bytes > most:
            name, value = self._kept.pop()
            self._kept_bytes -= len(name) + len(value) + _FIELD_OVERHEAD


def _number(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """A number whose first byte has a prefix of `mask`'s bits, and where it ends (RFC 7541, 5.1)."""
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


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    is_coded = block[at] & _HUFFMAN
    size, at = _number(block, at, 0x7F)
    stop = at + size
    if stop > len(block):
        raise ValueError("a string that is cut off")
    return decode_huffman(block[at:stop]) if is_coded else block[at:stop], stop
