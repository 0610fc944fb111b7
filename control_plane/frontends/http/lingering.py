"""Lingering close of an HTTP/1.1 connection: a client that was refused may go on sending for a while.

Closing a socket with unread bytes resets the connection, and the client would never read the refusal. Used by
`frontends/http/connection`.
"""

from __future__ import annotations

import asyncio

from control_plane.frontends.common.read_scheduler import LARGE_READ_BYTES, ReadScheduler

LINGER_S = 2.0
"""Seconds that a refused client may go on sending."""


class Lingering(asyncio.Protocol):
    """Stand-in for a refused connection at its transport, which drops what comes.

    Its socket is read in turn with those of other floods (`read_scheduler`), once each time.
    """

    def __init__(self, connection: asyncio.Protocol, transport: asyncio.Transport, reads: ReadScheduler) -> None:
        """Half-close a connection that reads its socket, and take its place until it is lost."""
        self._connection, self._transport, self._reads = connection, transport, reads
        transport.set_protocol(self)
        if transport.can_write_eof():  # asyncio's TLS transports cannot half-close
            transport.write_eof()

    def data_received(self, data: bytes) -> None:
        self._transport.pause_reading()
        if len(data) >= LARGE_READ_BYTES:
            self._reads.put_off(self)
        else:
            self._reads.add(self)

    def read_socket(self) -> None:
        """See `read_scheduler.PausedConnection`."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    is_over = False

    def read_backlog(self, until_s: float) -> bool:
        """See `read_scheduler.BackloggedConnection`; there is none, but a socket to be read."""
        self.read_socket()
        return False

    def eof_received(self) -> bool:
        return False  # the client has read the refusal, or left: close

    def connection_lost(self, exc: Exception | None) -> None:
        self._reads.remove(self)
        self._connection.connection_lost(exc)
