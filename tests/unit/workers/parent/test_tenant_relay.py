"""The parent's relay of tenants' events: every worker that follows a tenant has the same feed."""

from __future__ import annotations

import json

from control_plane.events.tenant_feeds import TenantFeeds, TenantReader
from control_plane.events.tenant_tap import Tapped
from control_plane.workers.messages.to_workers import TenantEvents
from control_plane.workers.parent.tenant_relay import TenantRelay


def told(*names: str, tenant: str = "team") -> list[Tapped]:
    return [Tapped(tenant, "request.ended", 1.7e9, json.dumps({"name": name})) for name in names]


class Worker:
    """A worker's copies, fed by what it is sent."""

    def __init__(self, relay: TenantRelay) -> None:
        self.feeds = TenantFeeds(linger_s=0.0)
        self.feeds.changed = lambda tenants: relay.follow(self.send, sorted(tenants))
        self.messages = 0

    def send(self, message: TenantEvents) -> None:
        self.messages += 1
        events = [each.encode() for each in message.events]
        self.feeds.take(message.tenant, message.feed, message.first, events, begins=message.begins, more=message.more)

    def read(self, after: str = "") -> tuple[TenantReader, bool]:
        reader = self.feeds.read("team", after=after)
        return reader, reader.begin()


def names(reader: TenantReader) -> list[tuple[str, str]]:
    return [(id_.split("-")[1], json.loads(event)["data"]["name"]) for id_, event in reader.take(limit=999)]


def test_who_is_cut_off_at_one_worker_goes_on_at_another() -> None:
    hub = TenantFeeds()
    relay = TenantRelay(hub)
    one, other = Worker(relay), Worker(relay)
    reader, _ = one.read()
    relay.publish(told("a", "b"))
    ((id_, _),) = reader.take(limit=1)
    reader.close()
    relay.publish(told("c"))
    again, has_gap = other.read(after=id_)
    assert (has_gap, names(again)) == (False, [("2", "b"), ("3", "c")])
    relay.publish([*told("d"), *told("e", tenant="nobody's")])
    assert names(again) == [("4", "d")]
    assert one.messages == 2, "nobody reads there any more"


def test_all_that_is_kept_comes_in_pieces_and_once() -> None:
    hub = TenantFeeds()
    relay = TenantRelay(hub)
    one, other = Worker(relay), Worker(relay)
    first, _ = one.read()
    relay.publish(told(*map(str, range(350))))
    later, has_gap = other.read(after=f"{first.feed.id}-0")
    assert not has_gap
    assert [number for number, _ in names(later)] == [str(number) for number in range(1, 351)] == [number for number, _ in names(first)]
    assert other.messages == 4


def test_a_worker_that_ends_lets_its_tenants_go() -> None:
    now = [1.0]
    hub = TenantFeeds(now_s=lambda: now[0])
    relay = TenantRelay(hub)
    worker = Worker(relay)
    worker.read()
    relay.left(worker.send)
    now[0] = 100.0
    hub.sweep()
    assert hub.tenants == frozenset()
    before = worker.messages
    relay.publish(told("a"))
    assert worker.messages == before
