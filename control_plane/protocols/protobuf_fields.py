"""Walks the fields of a serialised protobuf message without parsing what is in them.

Source: protobuf's encoding. A message's fields may be left out or added without touching the others, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator

from control_plane.core.errors import InvalidRequest

_TAGS = 1 << 32
"""Tags have 32 bits. Some parsers cut off what is beyond, and would take for the model's name what is not one here."""


def fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Tag, the whole field, and what follows its tag (and length, where it has one). Raises InvalidRequest."""
    at = 0
    while at < len(message):
        began = at
        tag, at = _read_varint(message, at)
        if tag >= _TAGS:
            raise InvalidRequest("not a protobuf message: it has a field whose number is too large")
        start, end = _extent(message, tag, at)
        yield tag, message[began:end], message[start:end]
        at = end


def _extent(message: memoryview, tag: int, at: int) -> tuple[int, int]:
    start = at
    match tag & 7:
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
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise InvalidRequest("not a protobuf message: it has a number that does not end")
