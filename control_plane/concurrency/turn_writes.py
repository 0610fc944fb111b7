"""Writes of one turn of the event loop, made one right after the other at its end.

A write wakes the process that reads the socket, mostly on another CPU, and that costs more than the write. Where
requests are worked on between two writes the peer has read the first, and sleeps again, when the second comes;
written together they wake it once. Used by `frontends/http/answers/writer`, `frontends/grpc/connection` and
`triton/adapters/http/client`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

_MOST = 32
"""Writes that are put off at a time: by then most of what waking costs is saved, and the first of them has waited
for less than a millisecond of work."""


class Unsent(Protocol):
    """A connection that has put off what it has to send."""

    def flush(self) -> None:
        """Write it; nothing where the connection has ended meanwhile, or has written it before. Never raises."""


class TurnWrites:
    """Queue of the connections that write at the end of this turn of the event loop.

    Whoever knows that nothing else is under way writes at once instead: to be put off costs another turn.
    """

    def __init__(self) -> None:
        self._unsent: list[Unsent] = []

    def put_off(self, connection: Unsent) -> None:
        """Have the connection flushed at the end of this turn, or before."""
        self._unsent.append(connection)
        count = len(self._unsent)
        if count == 1:
            asyncio.get_running_loop().call_soon(self._flush)
        elif count == _MOST:
            self._flush()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for connection in unsent:
            connection.flush()
