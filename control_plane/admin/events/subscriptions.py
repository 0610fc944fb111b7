"""The streams of events that the admin API offers, which are there, and fed, before it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.admin.events.feed import EventFeed
from control_plane.admin.events.logs import LogReaders
from control_plane.events.domain.stream import Stream
from control_plane.events.ports import NumberedLog

MAX_REQUESTS = 10_000
"""Latest records of requests that are kept while somebody reads them, some 6 MB."""


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The streams of events that the admin API offers, and those who read them."""

    logs: Mapping[Stream, NumberedLog]
    readers: LogReaders
    source: str
    """Source of the gateway's own events."""
    requests: EventFeed = field(default_factory=lambda: EventFeed(max_events=MAX_REQUESTS))
    """Requests that have ended, as CloudEvents; fed while it is watched."""
