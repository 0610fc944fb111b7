"""A flood as a value: what one client writes to each of its connections, over and over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Pieces = Callable[[bytes], Iterator[bytes]]
"""Given a key (empty for none), what is written to one connection, a write at a time."""


@dataclass(frozen=True, slots=True)
class Flood:
    """Flood: what a client without an end sends, over how many connections."""

    name: str
    protocol: str
    pieces: Pieces
    connections: int = 1
    has_key: bool = False
    reads: bool = True
    """Whether what the gateway writes is read."""
    awaits: bool = False
    """Whether each write waits for an answer to the one before: then it is no flood, but what others are compared with."""
    pause_s: float = 0.0
    """Between two writes to one connection."""
    refused_with: str = ""
    """The status, or the code of HTTP/2's, with which the gateway ends a connection; empty: it does nothing forbidden, and is borne."""


def repeated(opening: bytes, burst: bytes) -> Iterator[bytes]:
    """The opening once, then the burst without end."""
    yield opening
    while True:
        yield burst
