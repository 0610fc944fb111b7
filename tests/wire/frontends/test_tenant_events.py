"""`GET /v2/events` on real sockets: whose events they are, who may read them, from where they go on, and how they end."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from control_plane.core.scope import parse_scope
from control_plane.events.tenant_feeds import MAX_EVENTS, MAX_STREAMS_OF_TENANT, TenantFeeds
from control_plane.frontends.tenant_events import TenantEventsHttp
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.wire.gateway import Client, Gateway, gateway

MINE, OTHERS, NO_SCOPE = 1, 2, 3


def known_keys() -> ObjectMirror:
    keys = (api_key(MINE, "events"), api_key(OTHERS, "events", tenant="others"), api_key(NO_SCOPE, "infer:*"))
    return known_state(keys=keys, tenants=(Tenant("team"), Tenant("others")))


@asynccontextmanager
async def serving(feeds: TenantFeeds, *, known: ObjectMirror | None = None, heartbeat_s: float = 15.0) -> AsyncIterator[Gateway]:
    governed = governance(known or known_keys(), authentication=True)
    async with gateway(governed=governed, events=TenantEventsHttp(feeds, heartbeat_s=heartbeat_s)) as it:
        yield it


async def opened(it: Gateway, key: int = MINE, *, after: str = "", method: str = "GET", small: bool = False) -> Client:
    client = await it.connect(receive_buffer_bytes=4096 if small else None)
    field = f"Last-Event-ID: {after}\r\n" if after else ""
    await client.send(f"{method} /v2/events HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key_text(key)}\r\n{field}\r\n".encode())
    return client


async def begun(it: Gateway, key: int = MINE, *, after: str = "") -> tuple[Client, bytes]:
    """A stream, and what it begins with."""
    client = await opened(it, key, after=after)
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    assert b"\r\nContent-Type: text/event-stream\r\n" in head
    assert b"\r\nCache-Control: no-store\r\n" in head
    return client, await piece(client)


async def piece(client: Client) -> bytes:
    size = int(await client.reader.readline(), 16)
    found = await client.reader.readexactly(size)
    await client.reader.readexactly(2)
    return found


def publish(feeds: TenantFeeds, tenant: str, *names: str) -> None:
    for name in names:
        feeds.publish(tenant, "request.ended", 1.7e9, json.dumps({"request_id": name}).encode())


def told(found: bytes) -> list[tuple[str, str]]:
    """Ids and names of events."""
    return [
        (id_.decode(), json.loads(data)["data"]["request_id"])
        for id_, data in re.findall(rb"id: (\S+)\nevent: message\ndata: (.*)\n", found)
    ]


async def test_a_tenant_gets_its_own_events_with_its_own_numbers() -> None:
    feeds = TenantFeeds()
    async with serving(feeds) as it:
        (mine, first), (others, _) = await begun(it), await begun(it, OTHERS)
        assert first == b"retry: 2000\n\n"
        publish(feeds, "others", *"abc")
        publish(feeds, "team", "mine")
        ((id_, name),) = told(await piece(mine))
        assert (id_.split("-")[1], name) == ("1", "mine")
        assert [name for _, name in told(await piece(others))] == ["a", "b", "c"]


async def test_it_goes_on_after_an_event_and_says_what_is_missing() -> None:
    feeds = TenantFeeds()
    async with serving(feeds) as it:
        client, _ = await begun(it)
        publish(feeds, "team", "one", "two")
        (id_, _), _ = told(await piece(client))
        await client.close()
        again, first = await begun(it, after=id_)
        assert b"gap" not in first
        assert [name for _, name in told(await piece(again))] == ["two"]
        _, first = await begun(it, after="01234567-1")
        assert b"event: gap\n" in first
        theirs, first = await begun(it, OTHERS, after=id_)
        assert b"event: gap\n" in first, "another tenant's id opens nothing"
        publish(feeds, "others", "theirs")
        assert [name for _, name in told(await piece(theirs))] == ["theirs"]


async def test_who_has_no_scope_for_it_is_refused_and_nothing_is_collected() -> None:
    feeds = TenantFeeds()
    async with serving(feeds) as it:
        client = await opened(it, NO_SCOPE)
        answer = await client.answer()
        assert answer.status == 403
        assert b"this needs the scope events" in answer.body
        assert feeds.tenants == frozenset()


async def test_a_tenants_streams_are_bounded_and_one_that_leaves_makes_room() -> None:
    feeds = TenantFeeds()
    async with serving(feeds) as it:
        clients = [(await begun(it))[0] for _ in range(MAX_STREAMS_OF_TENANT)]
        refused = await (await opened(it)).answer()
        assert refused.status == 429
        assert b"\r\nRetry-After: 5\r\n" in refused.head
        await begun(it, OTHERS)
        await clients[0].close()
        while (await (await opened(it)).reader.readuntil(b"\r\n\r\n"))[9:12] != b"200":
            await asyncio.sleep(0.01)


async def test_it_ends_within_a_second_of_its_key() -> None:
    feeds, known = TenantFeeds(), known_keys()
    async with serving(feeds, known=known) as it:
        client, _ = await begun(it)
        known.keys, known.generation = {}, known.generation + 1
        async with asyncio.timeout(1.0):
            assert b'data: {"error":"the API key is not valid"}' in await client.reader.readuntil(b"\r\n0\r\n\r\n")
        publish(feeds, "team", "late")


async def test_it_ends_when_its_key_loses_the_scope() -> None:
    known = known_keys()
    async with serving(TenantFeeds(), known=known) as it:
        client, _ = await begun(it)
        changed = {id_: replace(key, scopes=(parse_scope("infer:*"),)) for id_, key in known.keys.items()}
        known.keys, known.generation = changed, known.generation + 1
        async with asyncio.timeout(1.0):
            assert b"this needs the scope events" in await client.reader.readuntil(b"\r\n0\r\n\r\n")


async def test_one_that_reads_too_slowly_is_told_so_and_let_go() -> None:
    feeds = TenantFeeds()
    async with serving(feeds) as it:
        client = await opened(it, small=True)
        await asyncio.sleep(0.05)
        while not any(reader.is_too_slow for reader in feeds._readers):  # until the kernel takes no more for it
            publish(feeds, "team", *["x" * 2000] * (MAX_EVENTS // 4))
            await asyncio.sleep(0.001)
        rest = await _all_of(client)
        assert b'event: dropped\ndata: {"reason": "it was read too slowly; connect again with Last-Event-ID"}' in rest
        assert feeds._readers == []


async def _all_of(client: Client) -> bytes:
    found = b""
    while not found.endswith(b"\r\n0\r\n\r\n"):
        found = found[-1000:] + await client.reader.read(1 << 20)
    return found


async def test_a_heartbeat_comes_while_nothing_happens_and_a_head_alone_for_head() -> None:
    feeds = TenantFeeds()
    async with serving(feeds, heartbeat_s=0.05) as it:
        client, _ = await begun(it)
        assert await piece(client) == b":\n\n"
        head = await (await opened(it, method="HEAD")).reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head


async def test_a_gateway_that_ends_ends_its_streams() -> None:
    feeds = TenantFeeds()
    async with serving(feeds) as it:
        client, _ = await begun(it)
        feeds.close()
        assert await client.reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"


async def test_a_worker_whose_parent_sends_nothing_says_so() -> None:
    feeds = TenantFeeds(linger_s=0.0)
    async with serving(feeds) as it:
        client = await opened(it)
        rest = await client.reader.readuntil(b"\r\n0\r\n\r\n")
        assert b'event: dropped\ndata: {"reason": "events cannot be told now; connect again"}' in rest


async def test_a_worker_waits_for_all_of_a_feed_that_comes_in_pieces() -> None:
    feeds = TenantFeeds(linger_s=0.0)
    async with serving(feeds) as it:
        client = await opened(it, after="0123abcd-2")
        await client.reader.readuntil(b"\r\n\r\n")
        for number in (1, 2, 3):
            await asyncio.sleep(0.02)
            event = b'{"data":{"request_id":"%d"}}' % number
            feeds.take("team", "0123abcd", number, [event], begins=number == 1, more=number < 3)
        assert await piece(client) == b"retry: 2000\n\n"
        assert told(await piece(client)) == [("0123abcd-3", "3")]


async def test_without_keys_there_is_one_tenant() -> None:
    feeds = TenantFeeds()
    async with gateway(events=TenantEventsHttp(feeds)) as it:
        client = await it.connect()
        await client.send(b"GET /v2/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await client.reader.readuntil(b"retry: 2000\n\n\r\n")
        publish(feeds, "", "mine")
        assert [name for _, name in told(await piece(client))] == ["mine"]
