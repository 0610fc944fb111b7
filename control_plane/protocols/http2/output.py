"""Writes an HTTP/2 connection's output to a transport, with few copies and few calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

_JOIN_UP_TO_BYTES = 64 * 1024
"""Up to this size, one joined write is cheaper; uvloop's `writelines` alone costs 100 us."""


class Transport(Protocol):
    """The methods of an asyncio transport that are used here."""

    def write(self, data: bytes | memoryview) -> None: ...

    def writelines(self, list_of_data: Iterable[bytes | memoryview]) -> None: ...


def write_output(transport: Transport, output: Sequence[bytes | memoryview]) -> int:
    """Write all of `output`, which the caller clears; return its size in bytes."""
    size_bytes = sum(map(len, output))
    if size_bytes > _JOIN_UP_TO_BYTES:
        transport.writelines(output)
    elif size_bytes:
        transport.write(b"".join(output))
    return size_bytes
