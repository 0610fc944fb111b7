"""Ports of events: logs that events are read from, and the streams that they are published to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from control_plane.events.domain.stream import Stream


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event with its number in a log."""

    number: int
    id: str
    encoded: bytes


@dataclass(frozen=True, slots=True)
class Position:
    """The last event of a log that was published; number 0 for none."""

    number: int = 0
    id: str = ""


class NumberedLog(Protocol):
    """Log of numbered events, of which it may keep only the newest. Each method raises StoreUnavailable."""

    async def page(self, after: int, *, limit: int) -> list[LoggedEvent]:
        """Return up to `limit` events with numbers above `after`, oldest first."""

    async def newest(self) -> int:
        """Return the number of the newest event, 0 if there is none."""


class EventStreams(Protocol):
    """Streams that others subscribe to. Each method raises StoreUnavailable, and may have done its work all the same."""

    async def append(self, stream: Stream, events: Sequence[bytes]) -> None:
        """Append events, in this order."""

    async def position(self, stream: Stream) -> Position:
        """Return the last event of a log that is on the stream."""

    async def advance(self, stream: Stream, events: Sequence[bytes], *, before: Position, after: Position) -> bool:
        """Append events of a log and note the last one's position, both or neither; False, and nothing done, where the position is
        not `before`: another gateway was faster."""

    async def close(self) -> None: ...
