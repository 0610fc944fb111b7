"""Queue of events that are in no log (requests, the gateway's own), on their way to the streams.

Putting one in costs an append and never waits. While the streams are away it fills up to its bound, and what comes then is
dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from control_plane.core.errors import StoreUnavailable
from control_plane.events.domain.stream import Stream
from control_plane.events.ports import EventStreams

_log = logging.getLogger(__name__)

PERIOD_S = 0.2
AT_ONCE = 100
"""Events that are encoded and sent together: a millisecond, in which nothing else runs."""
_RETRY_S = 2.0
MOST_WAITING = 10_000
"""Most events that wait, some 6 MB."""

T = TypeVar("T")


class EventQueue(Generic[T]):
    """Bounded queue of one process and one stream; implements `metering/ports.RequestLog` where `T` is a request's event."""

    def __init__(self, streams: EventStreams, stream: Stream, encode: Callable[[T], bytes], *, most: int = MOST_WAITING) -> None:
        self._streams = streams
        self._stream = stream
        self._encode = encode
        self._most = most
        self._waiting: deque[T] = deque()
        self._sent: list[bytes] = []
        """Events that were sent, and may have to be sent again."""
        self.published = self.dropped = 0

    def write(self, event: T) -> None:
        """Publish an event later, without waiting; dropped where too many wait already."""
        if len(self._waiting) < self._most:
            self._waiting.append(event)
        else:
            self.dropped += 1

    async def run(self) -> None:
        """Publish until cancelled, through outages."""
        is_away = False
        while True:
            try:
                await self._send()
                is_away = False
            except StoreUnavailable as exc:
                if not is_away:
                    _log.warning("events of the stream %s are not published for now: %s", self._stream, exc)
                is_away = True
            except Exception:
                _log.exception("events of the stream %s could not be published", self._stream)
                self._give_up_sent()
                is_away = True
            await asyncio.sleep(_RETRY_S if is_away else PERIOD_S)

    async def close(self, timeout_s: float) -> None:
        """Publish what waits for at most `timeout_s`, and drop the rest; `run` must have ended."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._send()
        except (StoreUnavailable, TimeoutError):
            _log.warning("%d events of the stream %s were not published", len(self._waiting) + len(self._sent), self._stream)
        finally:
            self._give_up_sent()
            self.dropped += len(self._waiting)
            self._waiting.clear()

    async def _send(self) -> None:
        while self._sent or self._waiting:
            if not self._sent:
                self._encode_next()
            if self._sent:
                await self._streams.append(self._stream, self._sent)
            self.published += len(self._sent)
            self._sent = []

    def _encode_next(self) -> None:
        for _ in range(min(len(self._waiting), AT_ONCE)):
            try:
                self._sent.append(self._encode(self._waiting.popleft()))
            except Exception:
                self.dropped += 1
                _log.exception("an event of the stream %s cannot be written, and is dropped", self._stream)

    def _give_up_sent(self) -> None:
        self.dropped += len(self._sent)
        self._sent = []
