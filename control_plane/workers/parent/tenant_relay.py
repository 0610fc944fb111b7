"""Parent's side of the streams of tenants' events: it gives the numbers, and sends each worker the feeds that are read there.

So a reader that comes back to another worker finds its place, and all readers of a tenant see the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from control_plane.events.tenant_feeds import TenantFeed, TenantFeeds
from control_plane.events.tenant_tap import Tapped
from control_plane.workers.messages.to_workers import TenantEvents

Send = Callable[[TenantEvents], None]

_AT_ONCE = 100


class TenantRelay:
    """Relay of the feeds of tenants to the workers that follow them."""

    def __init__(self, feeds: TenantFeeds) -> None:
        self._feeds = feeds
        self._followed: dict[Send, frozenset[str]] = {}
        self._waiting: dict[str, TenantEvents] = {}
        """Tenant -> its new events, which are sent together to the workers that follow it."""
        feeds.told = self._note

    def follow(self, send: Send, tenants: Iterable[str]) -> None:
        """Send a worker the feeds of these tenants, what is kept of them first, and no others any more."""
        wanted, before = frozenset(tenants), self._followed.get(send, frozenset())
        self.flush()  # what others are still to be sent, this one gets with all that is kept
        for tenant in wanted - before:
            self._send_all(send, self._feeds.hold(tenant))
        self._followed[send] = wanted
        for tenant in before - wanted:
            self._feeds.release(tenant)

    def left(self, send: Send) -> None:
        """Forget a worker that has ended."""
        self.follow(send, ())
        del self._followed[send]

    def publish(self, tapped: Iterable[Tapped]) -> None:
        """Give events their numbers, and send them on."""
        for event in tapped:
            self._feeds.publish(event.tenant, event.kind, event.at_s, event.data.encode())
        self.flush()

    def flush(self) -> None:
        """Send on what was given numbers."""
        waiting, self._waiting = self._waiting, {}
        for message in waiting.values():
            for send, tenants in self._followed.items():
                if message.tenant in tenants:
                    send(message)

    def _note(self, feed: TenantFeed, number: int, event: bytes) -> None:
        self._waiting.setdefault(feed.tenant, TenantEvents(feed.tenant, feed.id, number, [])).events.append(event.decode())

    def _send_all(self, send: Send, feed: TenantFeed) -> None:
        first, events = feed.oldest, [event.decode() for event in feed.since(feed.oldest)]
        for at in range(0, max(1, len(events)), _AT_ONCE):
            piece = events[at : at + _AT_ONCE]
            send(TenantEvents(feed.tenant, feed.id, first + at, piece, begins=at == 0, more=at + _AT_ONCE < len(events)))
