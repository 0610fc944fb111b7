"""Records of requests for whoever reads them over the admin API: how they are encoded, and where they wait."""

from __future__ import annotations

from collections import deque
from secrets import token_hex

from control_plane.events.domain.cloud_event import request_event
from control_plane.metering.domain.usage import UsageEvent

MOST_WAITING = 5000
"""Most records that wait for the next look, four times a second: 20,000 requests a second of one process."""
AT_ONCE = 100
"""Records that are encoded at once: a millisecond, in which nothing else runs."""


class RequestEncoder:
    """Encoder of one process's records; the same request has the same id wherever it is sent."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._process = token_hex(4)
        """Part of each id: numbers begin anew with each process."""

    def __call__(self, event: UsageEvent) -> bytes:
        return request_event(event, id=f"{self._process}-{event.number}", source=self._source)


class RequestTap:
    """Bounded buffer of the latest requests, filled while somebody reads them; implements `metering/ports.RequestLog`."""

    def __init__(self, encode: RequestEncoder) -> None:
        self._encode = encode
        self._waiting: deque[UsageEvent] = deque()
        self.dropped = 0

    def write(self, event: UsageEvent) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(event)
        else:
            self.dropped += 1

    def take(self) -> list[bytes]:
        """Return the oldest that wait, some at a time, encoded; empty if none does."""
        return [self._encode(self._waiting.popleft()) for _ in range(min(len(self._waiting), AT_ONCE))]
