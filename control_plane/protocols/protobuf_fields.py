"""Splits a serialised protobuf message into its fields, without parsing their contents and without copying.

Source: protobuf's encoding, in which fields may be left out or appended without touching the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from control_plane.core.errors import InvalidRequest

_TAGS = 1 << 32
"""Tags have 32 bits. Some parsers cut longer ones off, and would then see a model's name in a field that is
none here."""


def fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield for each field its tag, the whole field, and its value without tag and length.

    Raises InvalidRequest.
    """
    for tag, began, start, end in extents(message):
        yield tag, message[began:end], message[start:end]


def extents(message: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield for each field its tag, where it begins, and where its value starts and ends. Views of fields of a few bytes would take most
    of the time, and of memory.

    Raises InvalidRequest.
    """
    at, size = 0, len(message)
    while at < size:
        began = at
        tag = message[at]
        if tag < 0x80:
            at += 1
        else:
            tag, at = _read_varint(message, at)
            if tag >= _TAGS:
                raise InvalidRequest("not a protobuf message: it has a field whose number is too large")
        start, end = _extent(message, tag, at)
        yield tag, began, start, end
        at = end


def _extent(message: memoryview, tag: int, at: int) -> tuple[int, int]:
    """Return where a field's value starts and ends."""
    start = at
    match tag & 7:  # the wire type
        case 0:
            end = _read_varint(message, at)[1]
        case 1:
            end = at + 8
        case 2:
            size, start = _read_varint(message, at)
            end = start + size
        case 5:
            end = at + 4
        case _:
            raise InvalidRequest("not a protobuf message: it has a field of an unknown kind")
    if end > len(message):
        raise InvalidRequest("not a protobuf message: it ends within a field")
    return start, end


def varint(value: int) -> bytes:
    """Encode a non-negative number as protobuf's varint."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):  # at most ten bytes, enough for 64 bits
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise InvalidRequest("not a protobuf message: it has a number that does not end")
