"""Fields of protobuf messages, read and written without a schema.

The package `onnx` would read a file's weights along with its graph, and is not where models are only served.
Follows https://protobuf.dev/programming-guides/encoding/. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
MAX_VARINT = 10

Field = tuple[int, int, int | bytes]
"""Number, wire type, and value: an integer of a VARINT, else its bytes."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the integer at `at` and where it ends. Raises ValueError: there is none."""
    value = 0
    for index, byte in enumerate(data[at : at + MAX_VARINT]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a number does not end")


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message. Raises ValueError: it is cut, or no message."""
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = varint(message, at)
            yield number, kind, value
            continue
        if kind == LENGTH:
            size, at = varint(message, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind} is unknown")
        if at + size > len(message):
            raise ValueError("a field is cut")
        yield number, kind, message[at : at + size]
        at += size


def encode_varint(value: int) -> bytes:
    """Encode an integer of 0 or more."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode(*parts: tuple[int, int | bytes | str]) -> bytes:
    """Encode fields, each a number and its value."""
    return b"".join(_field(number, value) for number, value in parts)


def encode_fields(found: Iterable[Field]) -> bytes:
    """Encode fields as `fields` yields them."""
    encoded = bytearray()
    for number, kind, value in found:
        encoded += _field(number, value) if kind in (VARINT, LENGTH) else encode_varint(number << 3 | kind) + bytes(value)
    return bytes(encoded)


def _field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(value)
    content = value.encode() if isinstance(value, str) else value
    return encode_varint(number << 3 | LENGTH) + encode_varint(len(content)) + content
