from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from control_plane.core.errors import StoreUnavailable
from control_plane.events.domain.stream import Stream
from control_plane.events.ports import LoggedEvent, Position


@dataclass
class FakeEventStreams:
    """In-memory `events/ports.EventStreams`. While they are `away` each call raises StoreUnavailable; while they `lose_answers` it does
    its work, and raises all the same."""

    events: dict[Stream, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    positions: dict[Stream, Position] = field(default_factory=dict)
    is_away: bool = False
    loses_answers: bool = False

    async def append(self, stream: Stream, events: Sequence[bytes]) -> None:
        self._reach()
        self.events[stream] += events
        self._answer()

    async def position(self, stream: Stream) -> Position:
        self._reach()
        return self.positions.get(stream, Position())

    async def advance(self, stream: Stream, events: Sequence[bytes], *, before: Position, after: Position) -> bool:
        self._reach()
        if self.positions.get(stream, Position()) != before:
            return False
        self.events[stream] += events
        self.positions[stream] = after
        self._answer()
        return True

    async def close(self) -> None:
        pass

    def _reach(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the streams are away")

    def _answer(self) -> None:
        if self.loses_answers:
            raise StoreUnavailable("the streams do not answer")


@dataclass
class FakeLog:
    """In-memory `events/ports.NumberedLog` of so many events, which keeps the newest."""

    events: list[LoggedEvent] = field(default_factory=list)
    name: str = "a"

    def add(self, count: int = 1) -> None:
        begun = self.events[-1].number if self.events else 0
        self.events += [LoggedEvent(n, f"{self.name}{n}", b"%s%d" % (self.name.encode(), n)) for n in range(begun + 1, begun + count + 1)]

    async def page(self, after: int, *, limit: int) -> list[LoggedEvent]:
        return [each for each in self.events if each.number > after][:limit]

    async def newest(self) -> int:
        return self.events[-1].number if self.events else 0
