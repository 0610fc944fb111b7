"""Tenants whose events are read in a worker: all workers tell what happens to them, and that one gets what they told."""

from __future__ import annotations

import asyncio
import json

import pytest

from control_plane.events.tenant_feeds import TenantFeeds
from control_plane.workers.messages.from_workers import FollowTenants, TenantsTold
from control_plane.workers.messages.to_workers import CollectFor, TenantEvents
from tests.aio import settle
from tests.unit.workers.workers_bench import running

pytestmark = pytest.mark.virtual_time


async def test_what_one_worker_tells_another_one_gets_while_it_follows() -> None:
    async with running(2) as bench:
        feeds = TenantFeeds()
        bench.workers.serve_tenants(feeds)
        one, other = bench.started
        one.say(FollowTenants(["red"]))
        await settle()
        assert [worker.messages_of(CollectFor) for worker in bench.started] == [[CollectFor(["red"])]] * 2
        assert one.messages_of(TenantEvents)[-1].events == []
        other.say(TenantsTold([("red", "request.ended", 1.7e9, '{"request_id":"r"}'), ("blue", "request.ended", 1.7e9, "{}")]))
        await settle()
        told = one.messages_of(TenantEvents)[-1]
        assert (told.tenant, told.first, told.feed) == ("red", 1, feeds.hold("red").id)
        assert json.loads(told.events[0])["data"] == {"request_id": "r"}
        assert other.messages_of(TenantEvents) == []


async def test_a_worker_that_starts_later_is_told_whom_to_collect_for() -> None:
    async with running(2) as bench:
        feeds = TenantFeeds()
        bench.workers.serve_tenants(feeds)
        bench.started[0].say(FollowTenants(["red"]))
        await settle()
        bench.started[1].end()
        await asyncio.sleep(5.0)
        assert bench.started[2].messages_of(CollectFor) == [CollectFor(["red"])]
