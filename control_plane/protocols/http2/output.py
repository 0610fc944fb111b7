"""Hands what an HTTP/2 connection has to say to a transport, with as few copies and calls as it can be done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

_JOIN_UP_TO_BYTES = 64 * 1024
"""Up to here one joined write is cheaper; uvloop's `writelines` alone costs 100 us."""


class Transport(Protocol):
    """What is needed of an asyncio transport."""

    def write(self, data: bytes | memoryview) -> None: ...

    def writelines(self, list_of_data: Iterable[bytes | memoryview]) -> None: ...


def write_output(transport: Transport, output: Sequence[bytes | memoryview]) -> None:
    """Write all of `output`."""
    if not output:
        return
    if sum(map(len, output)) <= _JOIN_UP_TO_BYTES:
        transport.write(b"".join(output))
    else:
        transport.writelines(output)
