"""Body of a request that is received while its request is answered, for bodies that are too large for memory.

`frontends/http/requests/reader` puts in what arrives, and the application takes it out. While the buffer is full the
connection reads no more of its socket (`frontends/http/connection`), so that the client's own send blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from control_plane.core.errors import ControlPlaneError

_MOST_BYTES = 256_000
"""Bytes from which the buffer is full: as much as uvloop reads of a socket at a time."""


class BodyStream:
    """Bounded buffer between a connection and whoever receives a request's body; implements
    `protocols/http1.BodyPieces`.
    """

    def __init__(self, read_on: Callable[[], None]) -> None:
        """`read_on` is called when a full buffer has been emptied."""
        self._read_on = read_on
        self._buffer = bytearray()
        self._error: ControlPlaneError | None = None
        self._arrival: asyncio.Future[None] | None = None
        self.received_bytes = 0
        self.is_whole = False
        """Whether the last byte has arrived."""

    @property
    def is_full(self) -> bool:
        return len(self._buffer) >= _MOST_BYTES

    def put(self, piece: bytes) -> None:
        """Add bytes that have arrived."""
        self._buffer += piece
        self.received_bytes += len(piece)
        self._wake()

    def end(self) -> None:
        """Note that the body is whole."""
        self.is_whole = True
        self._wake()

    def fail(self, error: ControlPlaneError) -> None:
        """Have `receive` raise this error: the rest of the body will not come."""
        self._error = error
        self._wake()

    def take(self) -> bytearray:
        """Return what has arrived, without waiting."""
        was_full, taken, self._buffer = self.is_full, self._buffer, bytearray()
        if was_full:
            self._read_on()
        return taken

    async def receive(self) -> bytearray | None:
        """Return the next bytes, None after the last. Raises the ControlPlaneError for which the rest will not
        come.
        """
        while not self._buffer and self._error is None and not self.is_whole:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        if self._error is not None:
            raise self._error
        return self.take() if self._buffer else None

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
