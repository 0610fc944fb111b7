from __future__ import annotations

import json

from control_plane.events.tenant_feeds import TenantFeeds
from control_plane.events.tenant_usage import TenantUsage
from control_plane.metering.domain.usage import Usage, UsageBatch, UsageKey
from tests.aio import run
from tests.fakes.stores.usage_store import FakeUsageStore


def batch(id_: str, *tenants: str) -> UsageBatch:
    return UsageBatch(id_, tuple((UsageKey("2026-11-27", each, "m"), Usage(requests=3, compute_units=1.5)) for each in tenants))


def test_a_tenant_is_told_its_own_records_from_when_it_is_followed() -> None:
    async def test() -> None:
        store, feeds = FakeUsageStore(), TenantFeeds()
        usage = TenantUsage(store, feeds)
        await usage.look()
        await store.add(batch("1", "team"))
        reader = feeds.read("team")
        reader.begin()
        await usage.look()
        await store.add(batch("2", *(f"t{number}" for number in range(450)), "team"))
        await store.add(batch("3", "other"))
        await usage.look()
        ((id_, event),) = reader.take(limit=9)
        assert id_.endswith("-1")
        said = json.loads(event)
        assert said["type"] == "io.tidegate.usage.recorded.v1"
        assert (said["data"]["tenant"], said["data"]["requests"], said["data"]["compute_units"]) == ("team", 3, 1.5)
        assert "sequence" not in said
        await usage.look()
        assert reader.take(limit=9) == []

    run(test())


def test_while_the_store_is_away_nothing_is_told_and_later_all_of_it() -> None:
    async def test() -> None:
        store, feeds = FakeUsageStore(), TenantFeeds()
        usage = TenantUsage(store, feeds)
        reader = feeds.read("team")
        reader.begin()
        await usage.look()
        await store.add(batch("1", "team"))
        store.is_away = True
        await usage.look()
        store.is_away = False
        await usage.look()
        assert len(reader.take(limit=9)) == 1

    run(test())
