"""Feeds of tenants' own events: numbers of their own, a bound on what is kept, and on who reads."""

from __future__ import annotations

import asyncio
import json

import pytest

from control_plane.core.errors import LimitExceeded, Overloaded
from control_plane.events.tenant_feeds import MAX_EVENTS, MAX_FEEDS, MAX_STREAMS, MAX_STREAMS_OF_TENANT, TenantFeeds, TenantReader
from tests.aio import run_in_virtual_time


def publish(feeds: TenantFeeds, tenant: str, *names: str) -> None:
    for name in names:
        feeds.publish(tenant, "request.ended", 1.7e9, json.dumps({"name": name}).encode())


def begun(feeds: TenantFeeds, tenant: str = "team", after: str = "") -> tuple[TenantReader, bool]:
    reader = feeds.read(tenant, after=after)
    return reader, reader.begin()


def names(reader: TenantReader, limit: int = MAX_EVENTS) -> list[str]:
    return [json.loads(event)["data"]["name"] for _, event in reader.take(limit=limit)]


def test_numbers_are_a_tenants_own_whatever_others_do() -> None:
    feeds = TenantFeeds()
    (mine, _), (theirs, _) = begun(feeds), begun(feeds, "other")
    publish(feeds, "team", "a")
    publish(feeds, "other", *"bcdefgh")
    publish(feeds, "team", "i")
    taken = mine.take(limit=10)
    assert [id_.split("-")[1] for id_, _ in taken] == ["1", "2"]
    event = json.loads(taken[1][1])
    assert event["id"] == taken[1][0]
    assert event["source"] == "/tidegate/tenants/team"
    assert "sequence" not in event
    assert mine.feed.id != theirs.feed.id
    assert len(theirs.take(limit=10)) == 7


def test_nothing_is_kept_of_a_tenant_whom_nobody_follows() -> None:
    feeds = TenantFeeds()
    publish(feeds, "team", "a")
    reader, _ = begun(feeds)
    publish(feeds, "team", "b")
    assert names(reader) == ["b"]
    assert feeds.tenants == {"team"}


def test_a_reader_comes_back_without_a_gap_for_a_while_and_then_with_one() -> None:
    now = [0.0]
    feeds = TenantFeeds(linger_s=60.0, now_s=lambda: now[0])
    reader, _ = begun(feeds)
    publish(feeds, "team", "a", "b")
    ((id_, _),) = reader.take(limit=1)
    now[0] = 5.0
    reader.close()
    reader.close()
    publish(feeds, "team", "c")
    now[0] = 64.0
    feeds.sweep()
    again, has_gap = begun(feeds, after=id_)
    assert (has_gap, names(again)) == (False, ["b", "c"])
    again.close()
    now[0] = 130.0
    feeds.sweep()
    assert feeds.tenants == frozenset()
    late, has_gap = begun(feeds, after=id_)
    assert (has_gap, names(late)) == (True, [])


@pytest.mark.parametrize("after", ["nonsense", "0" * 5000, "01234567-1", "{id}-9", "{id}-999999999999999", "{id}-0", "{other}-1"])
def test_an_id_that_is_not_known_here_is_a_gap_and_not_another_tenants_event(after: str) -> None:
    feeds = TenantFeeds()
    reader, _ = begun(feeds)
    other, _ = begun(feeds, "other")
    publish(feeds, "team", "a")
    publish(feeds, "other", "secret")
    found, has_gap = begun(feeds, after=after.format(id=reader.feed.id, other=other.feed.id))
    assert has_gap is (not after.endswith("}-0"))
    assert names(found) == ["a"]


def test_one_that_reads_too_slowly_is_told_and_its_last_id_is_a_gap() -> None:
    feeds = TenantFeeds()
    reader, _ = begun(feeds)
    publish(feeds, "team", "first")
    ((id_, _),) = reader.take(limit=1)
    publish(feeds, "team", *map(str, range(MAX_EVENTS)))
    assert not reader.is_too_slow
    publish(feeds, "team", "one too many")
    assert reader.is_too_slow
    again, has_gap = begun(feeds, after=id_)
    assert has_gap
    assert len(names(again)) == MAX_EVENTS


def test_streams_are_bounded_by_tenant_and_together_and_make_room() -> None:
    feeds = TenantFeeds()
    held = [feeds.read("team") for _ in range(MAX_STREAMS_OF_TENANT)]
    with pytest.raises(LimitExceeded, match="4 streams of its events"):
        feeds.read("team")
    held[0].close()
    feeds.read("team")
    for number in range(MAX_STREAMS - MAX_STREAMS_OF_TENANT):
        feeds.read(f"t{number}")
    with pytest.raises(Overloaded, match="64 streams"):
        feeds.read("another")


def test_feeds_that_were_left_are_bounded_the_oldest_going_first() -> None:
    now = [0.0]
    feeds = TenantFeeds(now_s=lambda: now[0])
    kept = feeds.read("kept")
    for number in range(MAX_FEEDS + 5):
        now[0] += 0.1
        feeds.read(f"t{number}").close()
    assert len(feeds.tenants) == MAX_FEEDS
    assert {"kept", f"t{MAX_FEEDS + 4}"} <= feeds.tenants
    assert "t0" not in feeds.tenants
    kept.close()


def test_who_is_followed_is_told_when_it_changes() -> None:
    told: list[frozenset[str]] = []
    feeds = TenantFeeds(linger_s=0.0)
    feeds.changed = told.append
    one, two = feeds.read("team"), feeds.read("team")
    one.close()
    two.close()
    assert told == [{"team"}, frozenset()]


def test_a_copy_has_the_numbers_of_its_original_and_is_read_once_it_is_whole() -> None:
    feeds = TenantFeeds(linger_s=0.0)
    reader = feeds.read("team", after="0123abcd-8")
    feeds.take("team", "0123abcd", 9, [b"nine, of a copy that has gone"])
    assert not reader.is_ready
    feeds.take("team", "0123abcd", 5, [b"five", b"six"], begins=True, more=True)
    assert not reader.is_ready, "what it was named may be still to come"
    feeds.take("team", "0123abcd", 7, [b"seven", b"eight"], more=True)
    feeds.take("team", "0123abcd", 9, [b"nine"])
    assert (reader.is_ready, reader.begin()) == (True, False)
    feeds.take("team", "0123abcd", 10, [b"ten"])
    feeds.take("other", "0123abcd", 1, [b"not followed here"], begins=True)
    assert reader.take(limit=9) == [("0123abcd-9", b"nine"), ("0123abcd-10", b"ten")]
    feeds.take("team", "89ab4567", 1, [b"of another life"], begins=True)
    assert reader.is_too_slow, "what it would read next is not there any more"


def test_waiting_ends_with_an_event_with_time_and_with_the_gateway() -> None:
    async def test() -> None:
        feeds = TenantFeeds(now_s=asyncio.get_running_loop().time)
        reader, _ = begun(feeds)
        began_s = asyncio.get_running_loop().time()
        assert not await reader.wait(15.0)
        assert asyncio.get_running_loop().time() == began_s + 15.0
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(reader.wait(15.0))
            await asyncio.sleep(1.0)
            publish(feeds, "team", "a")
        assert waiting.result()
        reader.take(limit=1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reader.wait(15.0))
            await asyncio.sleep(1.0)
            feeds.close()
        assert asyncio.get_running_loop().time() == began_s + 17.0
        assert reader.is_closing

    run_in_virtual_time(test())
