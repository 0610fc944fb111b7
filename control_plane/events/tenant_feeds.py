"""Feeds of tenants' own events: of each tenant that is followed a ring buffer of the latest, with numbers of its own.

Numbers count one tenant's events, and begin anew with each feed, so that they tell nothing of what others use. A reader is a
place in the ring: one that reads slowly costs no memory, and is dropped once what it would read next has been overwritten.
A gateway's one process, or the parent of its workers, gives the numbers (`publish`); workers have copies (`take`). Nothing is
kept of a tenant that nobody follows, nor of one that nobody has followed for `linger_s`. Read by `frontends/tenant_events`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from secrets import token_hex

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.errors import LimitExceeded, Overloaded
from control_plane.events.domain.cloud_event import tenant_event
from control_plane.events.domain.event_id import event_id, number_in

MAX_EVENTS = 1000
"""Latest events of a tenant that are kept, some 0.5 MB: so far a reader may fall behind, or come back after."""
MAX_STREAMS_OF_TENANT, MAX_STREAMS = 4, 64
LINGER_S = 60.0
"""Time in which a reader that was cut off may come back without a gap."""
MAX_FEEDS = 128
"""Feeds that are kept at the same time: those that nobody reads any more go first."""
_RETRY_AFTER_S = 5.0


class TenantFeed:
    """Ring buffer of one tenant's events."""

    def __init__(self, tenant: str, id: str = "") -> None:  # noqa: A002
        self.tenant = tenant
        self.id = id
        """Eight random digits; empty: it is a copy that nothing has come for yet."""
        self.is_whole = bool(id)
        """Whether all that its original keeps is here."""
        self.holders = 0
        self.left_s = 0.0
        """When the last holder has left, in the loop's time."""
        self.count = 0
        """Number of the newest event."""
        self._events: deque[bytes] = deque(maxlen=MAX_EVENTS)
        self.news = Broadcast()
        """Wakes those who wait for another event, or are to look again."""

    @property
    def oldest(self) -> int:
        """Number of the oldest event that is kept; that of the next one where there is none."""
        return self.count - len(self._events) + 1

    def add(self, events: Iterable[bytes]) -> None:
        for event in events:
            self.count += 1
            self._events.append(event)
        self.news.wake()

    def begin(self, id: str, count: int) -> None:  # noqa: A002
        """Begin anew as a copy of the feed of this id, of which the events up to a number are not here."""
        self.id, self.count = id, count
        self._events.clear()

    def since(self, number: int, *, limit: int = MAX_EVENTS) -> list[bytes]:
        """Return the events from a number on, which is not before the oldest."""
        first = max(0, number - self.oldest)
        return [self._events[place] for place in range(first, min(first + limit, len(self._events)))]


class TenantFeeds:
    """Feeds of the tenants that are followed, of one process, and those who read them."""

    def __init__(self, *, linger_s: float = LINGER_S, now_s: Callable[[], float] = time.monotonic) -> None:
        """With a `linger_s` of 0 a feed goes with its last reader. `now_s` is the loop's time."""
        self._linger_s = linger_s
        self._now_s = now_s
        self._feeds: dict[str, TenantFeed] = {}
        self._readers: list[TenantReader] = []
        self.is_closing = False
        """Whether readers are to find another gateway."""
        self.changed: Callable[[frozenset[str]], None] = lambda tenants: None
        """Told whose events are wanted, whenever that changes."""
        self.told: Callable[[TenantFeed, int, bytes], None] = lambda feed, number, event: None
        """Told of each event that `publish` has given a number."""

    @property
    def tenants(self) -> frozenset[str]:
        """The tenants whose events are wanted."""
        return frozenset(self._feeds)

    def hold(self, tenant: str) -> TenantFeed:
        """Keep a tenant's feed, which is made if there is none, until `release`."""
        feed = self._feeds.get(tenant)
        if feed is None:
            self._let_go(keep=MAX_FEEDS - 1)
            feed = self._feeds[tenant] = TenantFeed(tenant, token_hex(4) if self._linger_s else "")
            self.changed(self.tenants)
        feed.holders += 1
        return feed

    def release(self, tenant: str) -> None:
        feed = self._feeds[tenant]
        feed.holders -= 1
        feed.left_s = self._now_s()
        if not self._linger_s:
            self.sweep()

    def sweep(self) -> None:
        """Let feeds go that nobody has held for a while."""
        before = len(self._feeds)
        until_s = self._now_s() - self._linger_s
        self._feeds = {tenant: each for tenant, each in self._feeds.items() if each.holders or each.left_s > until_s}
        if len(self._feeds) != before:
            self.changed(self.tenants)

    def _let_go(self, *, keep: int) -> None:
        """Let the feeds go that were left first, where there are too many."""
        left = sorted((each for each in self._feeds.values() if not each.holders), key=lambda each: each.left_s)
        for each in left[: max(0, len(self._feeds) - keep)]:
            del self._feeds[each.tenant]

    def publish(self, tenant: str, kind: str, at_s: float, data: bytes) -> None:
        """Give an event of a tenant its number; `data` is a JSON object in ASCII. Nothing is done where nobody follows it."""
        feed = self._feeds.get(tenant)
        if feed is not None:
            number = feed.count + 1
            event = tenant_event(kind, data, id=event_id(feed.id, number), tenant=tenant, at_s=at_s)
            feed.add((event,))
            self.told(feed, number, event)

    def take(self, tenant: str, feed_id: str, first: int, events: Iterable[bytes], *, begins: bool = False, more: bool = False) -> None:
        """Take events, numbered from `first` on, into this copy of a feed: it `begins` with these, or goes on, and there are `more`
        of it before it is whole. What goes on with a copy that is not here any more is left out."""
        feed = self._feeds.get(tenant)
        if feed is None:
            return
        if begins:
            feed.begin(feed_id, first - 1)
        elif (feed.id, feed.count + 1) != (feed_id, first):
            return
        feed.is_whole = not more
        feed.add(events)

    def read(self, tenant: str, *, after: str = "") -> TenantReader:
        """Begin to read a tenant's events: after the one of this id, else at the next one. Raises LimitExceeded, Overloaded."""
        if sum(reader.feed.tenant == tenant for reader in self._readers) >= MAX_STREAMS_OF_TENANT:
            raise LimitExceeded(f"this tenant has {MAX_STREAMS_OF_TENANT} streams of its events open already", retry_after_s=_RETRY_AFTER_S)
        if len(self._readers) >= MAX_STREAMS:
            raise Overloaded(f"{MAX_STREAMS} streams of tenants' events are open already; try again later")
        reader = TenantReader(self, self.hold(tenant), after)
        self._readers.append(reader)
        return reader

    def forget(self, reader: TenantReader) -> None:
        """Let a reader go. Idempotent."""
        if reader in self._readers:
            self._readers.remove(reader)
            self.release(reader.feed.tenant)

    def close(self) -> None:
        """Let all readers end."""
        self.is_closing = True
        for reader in self._readers:
            reader.feed.news.wake()


class TenantReader:
    """Place of one reader in a tenant's feed."""

    def __init__(self, feeds: TenantFeeds, feed: TenantFeed, after: str) -> None:
        self.feed = feed
        self._feeds = feeds
        self._after = after
        self._next = 0
        """Number of the event that is read next; 0: that is found out once the feed is whole."""
        self._of = ""

    @property
    def is_closing(self) -> bool:
        return self._feeds.is_closing

    @property
    def is_ready(self) -> bool:
        """Whether the feed is there."""
        return self.feed.is_whole

    @property
    def is_too_slow(self) -> bool:
        """Whether what it would read next is no longer kept, or the feed was begun anew."""
        return bool(self._next) and (self._next < self.feed.oldest or self._of != self.feed.id)

    def begin(self) -> bool:
        """Find the place in a feed that is there; return whether events are missing after the one that was named."""
        feed = self.feed
        self._of, self._next = feed.id, feed.count + 1
        if not self._after:
            return False
        last = number_in(feed.id, self._after)
        has_gap = last is None or not feed.oldest <= last + 1 <= feed.count + 1
        self._next = feed.oldest if last is None or has_gap else last + 1
        return has_gap

    def take(self, *, limit: int) -> list[tuple[str, bytes]]:
        """Return what has happened since the last time, with ids."""
        found = self.feed.since(self._next, limit=limit)
        numbered = [(event_id(self._of, self._next + place), event) for place, event in enumerate(found)]
        self._next += len(found)
        return numbered

    async def wait(self, timeout_s: float) -> bool:
        """Wait for another event; return whether there is one."""
        if self.feed.count < self._next or not self._next:
            await self.feed.news.wait(timeout_s)
        return bool(self._next) and self.feed.count >= self._next

    def close(self) -> None:
        self._feeds.forget(self)
