"""Pause before new connections of a source are read whose connections have broken the protocol again and again.

Each is ended, but what it may send until then costs a millisecond, and whoever opens the next one at once has as much of
the event loop as ever. The source is not refused: other clients may have the same address. They wait for a moment where
they open a connection, and not at all on those that they have. Used by `frontends/common/connection_server`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from control_plane.auth.domain.source import Source

_FREE, _PER_S = 20.0, 10.0
"""Breaches without a pause: so many at once, and so many in each second after that. Clients that are merely wrong come less often."""
_PAUSE_S = 0.1
"""Pause of each connection once there are more. Connections that are opened one after the other then break the protocol ten times a
second."""
_MOST = 1024
"""Most sources that are remembered; clients decide how many there are."""


class Breaches:
    """Token bucket of each source whose connections have broken the protocol of late."""

    def __init__(self) -> None:
        self.sources: dict[Source, tuple[float, float]] = {}
        """Source -> breaches that are free yet, and as of when; the oldest first."""

    def breached(self, source: Source, now_s: float) -> None:
        """Note that a connection of this source has broken the protocol."""
        left = self._remaining(source, now_s)
        self.sources.pop(source, None)
        self.sources[source] = max(0.0, left - 1.0), now_s
        if len(self.sources) > _MOST:
            del self.sources[next(iter(self.sources))]

    def pause_s(self, source: Source, now_s: float) -> float:
        """Return how long a new connection of this source is not read."""
        left = self._remaining(source, now_s)
        if left >= _FREE:
            self.sources.pop(source, None)
        return 0.0 if left >= 1.0 else _PAUSE_S

    def _remaining(self, source: Source, now_s: float) -> float:
        left, at_s = self.sources.get(source, (_FREE, now_s))
        return min(_FREE, left + _PER_S * (now_s - at_s))


class ReadingConnection(Protocol):
    """A connection as its transport knows it."""

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool | None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...


class HeldBack(asyncio.Protocol):
    """Stand-in for a connection at its transport, which keeps what comes first, and reads no more, until a pause is over."""

    def __init__(self, connection: ReadingConnection, transport: asyncio.Transport, pause_s: float) -> None:
        """Take the connection's place for `pause_s`."""
        self._connection, self._transport = connection, transport
        self._came = b""
        self._may_write = True
        transport.set_protocol(self)
        self._over = asyncio.get_running_loop().call_later(pause_s, self._end)

    def data_received(self, data: bytes) -> None:
        self._came += data
        self._transport.pause_reading()

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over.cancel()
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._may_write = False  # told later: a connection that cannot write pauses its reading

    def resume_writing(self) -> None:
        self._may_write = True

    def _end(self) -> None:
        transport = self._transport
        transport.set_protocol(cast("asyncio.BaseProtocol", self._connection))
        if self._came and not transport.is_closing():
            transport.resume_reading()
            self._connection.data_received(self._came)
        if not self._may_write:
            self._connection.pause_writing()
