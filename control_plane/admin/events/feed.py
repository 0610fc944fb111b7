"""Feed of what happens on this gateway: events of the fleet, of rollouts and of loads, in one order, each with an id.

The feed is a ring buffer, and a reader is a place in it: one that reads slowly costs no memory, and is dropped once what it
would read next has been overwritten. Fed by `app`; read by `admin/paths/events`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from secrets import token_hex
from typing import Any

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.errors import Overloaded
from control_plane.events.domain.event_id import event_id, number_in
from control_plane.fleet.domain.event import FleetEvent
from control_plane.frontends.http.answers.event_stream import render_event
from control_plane.objects.domain.rollout import Event, Rollout

MAX_EVENTS = 1000
GAP = render_event("gap", b'{"reason": "events before the next one are not kept any more, or were of an earlier process"}')
MAX_READERS = 32
MAX_READERS_OF_ONE = 4
_LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class GatewayEvent:
    """Something that has happened."""

    number: int
    at_s: float
    """Seconds since 1970."""
    kind: str
    """Where it is from and what it is, such as `fleet.loaded`, `rollout.step` and `model.failed`."""
    fields: Mapping[str, Any]
    encoded: bytes = b""
    """The event as a CloudEvent, where it came as one."""


class EventFeed:
    """Ring buffer of the latest events, and those who read it."""

    def __init__(self, *, today_s: Callable[[], float] = time.time, max_events: int = MAX_EVENTS) -> None:
        self._today_s = today_s
        self.tell: Callable[[GatewayEvent], None] = lambda event: None
        """Told each event."""
        self.watched: Callable[[bool], None] = lambda is_watched: None
        """Told whenever the first reader comes and the last one leaves."""
        self._process = token_hex(4)
        """Part of each id: numbers begin anew with each process."""
        self._events: deque[GatewayEvent] = deque(maxlen=max_events)
        self._count = 0
        self._news = Broadcast()
        self._readers: list[EventReader] = []

    def publish(self, kind: str, fields: Mapping[str, Any], *, at_s: float | None = None) -> None:
        """Add an event, and wake those who wait for one."""
        self._add(GatewayEvent(self._count + 1, self._today_s() if at_s is None else at_s, kind, fields))

    def publish_encoded(self, kind: str, events: Iterable[bytes]) -> None:
        """Add events that are CloudEvents already."""
        for encoded in events:
            self._add(GatewayEvent(self._count + 1, 0.0, kind, {}, encoded))

    def _add(self, event: GatewayEvent) -> None:
        self._count += 1
        self._events.append(event)
        self.tell(event)
        self._news.wake()

    @property
    def oldest(self) -> int:
        """Number of the oldest event that is kept; that of the next one where there is none."""
        return self._count - len(self._events) + 1

    def id_of(self, number: int) -> str:
        """Return the id of an event."""
        return event_id(self._process, number)

    def since(self, number: int) -> list[GatewayEvent]:
        """Return the events from a number on."""
        return [each for each in self._events if each.number >= number]

    def read(self, who: str, *, after: str = "", backlog: bool = False) -> EventReader:
        """Begin to read: after the event of this id, else at the oldest one (`backlog`) or at the next.

        Raises Overloaded: `who`, or all together, read too many times already.
        """
        require_room(own=sum(reader.who == who for reader in self._readers), in_all=len(self._readers))
        following, has_gap = (self.oldest if backlog else self._count + 1), False
        if after:
            last = number_in(self._process, after)
            has_gap = last is None or not self.oldest <= last + 1 <= self._count + 1
            following = self.oldest if last is None or has_gap else last + 1
        reader = EventReader(self, who, following, has_gap=has_gap)
        self._readers.append(reader)
        if len(self._readers) == 1:
            self.watched(True)
        return reader

    def forget(self, reader: EventReader) -> None:
        """Let a reader go. Idempotent."""
        if reader in self._readers:
            self._readers.remove(reader)
            if not self._readers:
                self.watched(False)

    async def wait(self, number: int, timeout_s: float) -> bool:
        """Wait for the event of a number; return whether it is there."""
        if self._count < number:
            await self._news.wait(timeout_s)
        return self._count >= number


def require_room(*, own: int, in_all: int) -> None:
    """Require room for one more stream beside a caller's own, and those of all callers. Raises Overloaded."""
    if own >= MAX_READERS_OF_ONE:
        raise Overloaded(f"{MAX_READERS_OF_ONE} streams of events at a time for one caller; close one")
    if in_all >= MAX_READERS:
        raise Overloaded(f"{MAX_READERS} streams of events are open already; try again later")


class EventReader:
    """Place of one reader in a feed."""

    def __init__(self, feed: EventFeed, who: str, following: int, *, has_gap: bool) -> None:
        self.who = who
        self.has_gap = has_gap
        """Whether events are missing before the first one: they are no longer kept, or were of an earlier process."""
        self._feed = feed
        self._next = following

    @property
    def is_too_slow(self) -> bool:
        """Whether what it would read next is no longer kept."""
        return self._next < self._feed.oldest

    def take(self) -> list[GatewayEvent]:
        """Return what has happened since the last time."""
        found = self._feed.since(self._next)
        self._next += len(found)
        return found

    async def wait(self, timeout_s: float) -> bool:
        """Wait for another event; return whether there is one."""
        return await self._feed.wait(self._next, timeout_s)

    def close(self) -> None:
        self._feed.forget(self)


class EventSources:
    """Watch of what keeps events of its own (the fleet, rollouts), of which each new one is published."""

    def __init__(
        self, feed: EventFeed, *, fleet: Callable[[], Iterable[FleetEvent]] = tuple, rollouts: Callable[[], Iterable[Rollout]] = tuple
    ) -> None:
        self._feed = feed
        self._fleet = fleet
        self._rollouts = rollouts
        self._last_of_fleet = _last(fleet())
        self._last_of_rollouts: dict[str, Event] | None = None

    async def run(self) -> None:
        """Publish what is new, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_EVERY_S)

    def look(self) -> None:
        """Publish what is new since the last look. What rollouts did before the first look is no news."""
        latest = list(self._fleet())
        for event in _after(latest, self._last_of_fleet):
            self._feed.publish(f"fleet.{event.kind.value}", _without_time(asdict(event)), at_s=event.at_s)
        self._last_of_fleet = _last(latest)
        seen, self._last_of_rollouts = self._last_of_rollouts, {}
        for rollout in self._rollouts():
            if seen is not None:
                for step in _after(list(rollout.events), seen.get(rollout.route)):
                    self._feed.publish(f"rollout.{rollout.phase.value}", _of_rollout(rollout, step), at_s=step.at_s)
            if rollout.events:
                self._last_of_rollouts[rollout.route] = rollout.events[-1]


def _after(events: list[Any], last: Any) -> list[Any]:
    """The events after the last one that was seen; all, where that is no longer among them."""
    for index in range(len(events) - 1, -1, -1):
        if events[index] == last:
            return events[index + 1 :]
    return events


def _last(events: Iterable[Any]) -> Any:
    found = list(events)
    return found[-1] if found else None


def _without_time(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in ("at_s", "kind")}


def _of_rollout(rollout: Rollout, step: Event) -> dict[str, Any]:
    return {
        "route": rollout.route,
        "model": rollout.model,
        "stable": rollout.stable,
        "what": step.what,
        "weight": step.weight,
        "by": step.by,
        "reason": rollout.reason,
    }
