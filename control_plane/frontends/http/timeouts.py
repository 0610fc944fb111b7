"""Time-outs of an HTTP/1.1 connection, one for each thing that it awaits of its client. Used by `frontends/http/connection`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from control_plane.core.errors import RequestTimeout
from control_plane.frontends.http.answers.writer import AnswerWriter
from control_plane.frontends.http.limits import HttpLimits
from control_plane.frontends.http.requests.reader import RequestReader
from control_plane.frontends.http.stalls import StallClock


class Awaited(Enum):
    """What a connection waits for its client to do, one thing at a time."""

    NOTHING = auto()
    """Nobody waits for the client."""
    REQUEST = auto()
    HEAD = auto()
    """The rest of a head that has begun to arrive."""
    BODY = auto()
    """The rest of a body."""
    READING = auto()
    """To read its answers."""


class ClientTimeouts:
    """Time-outs of one connection, for heads, bodies, idle connections and unread answers."""

    def __init__(self, limits: HttpLimits, reader: RequestReader, writer: AnswerWriter, refuse: Callable[[RequestTimeout], None]) -> None:
        self._limits = limits
        self._reader = reader
        self._writer = writer
        self._refuse = refuse
        self._stall = StallClock()

    def enforce(self, now_s: float, awaited: Awaited, taken: int, transport: asyncio.Transport) -> None:
        """End the connection, or refuse its request, if its client has made no progress for too long. `taken` is the
        number of requests that it has sent."""
        limits, has_stalled = self._limits, self._stall.has_stalled
        match awaited:
            case Awaited.NOTHING:
                self._stall.clear()
            case Awaited.REQUEST:
                if limits.idle_timeout_s and has_stalled(now_s, limits.idle_timeout_s, awaited, taken):
                    transport.close()
            case Awaited.HEAD:
                if has_stalled(now_s, limits.header_timeout_s, awaited, taken):
                    self._refuse(RequestTimeout(f"the request's head did not come within {limits.header_timeout_s:g} s"))
            case Awaited.BODY:
                if has_stalled(now_s, limits.body_timeout_s, awaited, taken, self._reader.body_progress):
                    self._refuse(RequestTimeout(f"the request's body came too slowly, or not at all, for {limits.body_timeout_s:g} s"))
            case Awaited.READING:
                if has_stalled(now_s, limits.body_timeout_s, awaited, self._writer.progress):
                    transport.abort()
