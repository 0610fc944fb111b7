"""What every `events/ports.EventStreams` does, and so does the fake; for Redis also what its subscribers see."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis

from control_plane.core.errors import StartupError, StoreUnavailable
from control_plane.events.adapters.redis_streams import RedisEventStreams, make_redis_streams
from control_plane.events.domain.stream import Stream
from control_plane.events.logs import UsageRecords
from control_plane.events.ports import EventStreams, Position
from control_plane.events.relay import EventRelay
from control_plane.metering.adapters.sqlite_usage import open_sqlite_usage
from control_plane.metering.domain.usage import EVERY_DAY, Usage, UsageBatch, UsageKey
from tests.aio import in_background
from tests.contract.stores.stores import LONG_S, Opening, empty_redis, handles
from tests.fakes.stores.event_streams import FakeEventStreams
from tests.redis_server import RedisServer, redis_server

ONE, TWO = Position(1, "id-1"), Position(3, 'id/3 "\n')


@pytest.fixture(params=["fake", "redis"])
def opening(request: pytest.FixtureRequest) -> Opening[EventStreams]:
    if request.param == "redis":
        server = empty_redis(request)
        return lambda: opened(server)
    shared = FakeEventStreams()

    async def fake() -> EventStreams:
        return shared

    return fake


async def opened(server: RedisServer, *, keep: int = 1000, store: str = "s") -> RedisEventStreams:
    return make_redis_streams(SecretStr(server.url), keep=keep, store=store)


async def refusal(streams: EventStreams, events: list[bytes]) -> StoreUnavailable:
    """Append the events over and over until that is refused."""
    for _ in range(100):
        try:
            await streams.append(Stream.REQUESTS, events)
        except StoreUnavailable as exc:
            return exc
    raise AssertionError("it takes whatever it is given")


async def read(server: RedisServer, stream: Stream) -> list[str]:
    """All that is on a stream, as any client sees it."""
    async with Redis.from_url(server.url, decode_responses=True) as client:
        found: Any = await client.xrange(f"tidegate:events:{stream}")
        return [fields["event"] for _, fields in found]


async def test_a_position_is_that_of_the_last_event_and_of_its_stream_alone(opening: Opening[EventStreams]) -> None:
    async with handles(opening, 2) as (one, other):
        assert await one.position(Stream.USAGE) == Position()
        assert await one.advance(Stream.USAGE, [b"1"], before=Position(), after=ONE)
        assert await other.position(Stream.USAGE) == ONE
        assert await other.advance(Stream.USAGE, [b"2", b"3"], before=ONE, after=TWO)
        assert await one.position(Stream.USAGE) == TWO
        assert await one.position(Stream.AUDIT) == Position()


async def test_of_gateways_that_go_on_from_one_position_only_one_does(opening: Opening[EventStreams]) -> None:
    async with handles(opening, 2) as streams:
        done = await asyncio.gather(
            *(each.advance(Stream.USAGE, [b"1"], before=Position(), after=ONE) for each in streams for _ in range(5))
        )
        assert sum(done) == 1
        assert not await streams[0].advance(Stream.USAGE, [b"9"], before=TWO, after=ONE)


async def test_in_redis_any_client_reads_them_in_their_order(redis: RedisServer) -> None:
    assert redis.call("FLUSHALL") == b"+OK\r\n"
    async with handles(lambda: opened(redis), 1) as (streams,):
        await streams.append(Stream.REQUESTS, ['{"é":1}'.encode(), b"{}"])
        await streams.advance(Stream.USAGE, [b"1", b"2"], before=Position(), after=TWO)
        await streams.append(Stream.REQUESTS, [b"[]"])
    assert await read(redis, Stream.REQUESTS) == ['{"é":1}', "{}", "[]"]
    assert await read(redis, Stream.USAGE) == ["1", "2"]


async def test_redis_keeps_about_so_many(redis: RedisServer) -> None:
    assert redis.call("FLUSHALL") == b"+OK\r\n"
    async with handles(lambda: opened(redis, keep=1000), 1) as (streams,):
        for number in range(30):
            await streams.append(Stream.REQUESTS, [b"%d" % (100 * number + each) for each in range(100)])
    found = await read(redis, Stream.REQUESTS)
    assert found == [str(each) for each in range(3000 - len(found), 3000)]
    assert 1000 <= len(found) <= 1100


async def test_gateways_with_stores_of_their_own_do_not_mix_their_positions(redis: RedisServer) -> None:
    assert redis.call("FLUSHALL") == b"+OK\r\n"
    async with handles(lambda: opened(redis, store="a"), 1) as (one,), handles(lambda: opened(redis, store="b"), 1) as (other,):
        assert await one.advance(Stream.USAGE, [b"a1"], before=Position(), after=ONE)
        assert await other.advance(Stream.USAGE, [b"b1"], before=Position(), after=ONE)


async def test_a_redis_that_is_away_or_frozen_is_so_within_its_time_and_comes_back(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with handles(lambda: opened(server), 1) as (streams,):
            await streams.append(Stream.USAGE, [b"1"])
            server.stop()
            with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
                await streams.append(Stream.USAGE, [b"2"])
            server.start()
            await streams.append(Stream.USAGE, [b"3"])
            assert await read(server, Stream.USAGE) == ["1", "3"]


async def test_the_usage_on_the_stream_is_the_stores_after_either_was_killed(tmp_path: Path) -> None:
    """A Redis that keeps nothing over its end, and a relay that is cut off anywhere: what is sent again has its id."""
    usage = await open_sqlite_usage(tmp_path / "usage.sqlite")
    folder = tmp_path / "redis"
    folder.mkdir()
    seen: dict[str, float] = {}

    async def collect() -> None:
        for text in await read(server, Stream.USAGE):
            event = json.loads(text)
            seen[event["id"]] = event["data"]["compute_units"]

    with redis_server(folder, "--appendonly", "no") as server:
        streams = await opened(server, keep=100_000)
        relay = EventRelay(streams, {Stream.USAGE: UsageRecords(usage, "/s")})
        for turn in range(4):
            async with in_background(relay.run()):
                for number in range(20):
                    key = UsageKey("2026-01-01", f"t{number % 3}", "m")
                    await usage.add(UsageBatch(f"{turn}-{number}", ((key, Usage(requests=1, compute_units=0.5)),)))
                    await asyncio.sleep(0.01 * turn)
            await collect()
            server.kill()
            server.start()
        async with in_background(relay.run()), asyncio.timeout(LONG_S):
            while len(seen) < 80:
                await asyncio.sleep(0.1)
                await collect()
        await streams.close()
    totals = await usage.totals(since_day=EVERY_DAY[0], until_day=EVERY_DAY[1])
    await usage.close()
    assert len(seen) == 80
    assert sum(seen.values()) == sum(each.compute_units for _, each in totals) == 40.0


async def test_a_redis_that_is_full_says_so_and_takes_them_once_there_is_room(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--maxmemory", "2mb", "--maxmemory-policy", "noeviction") as server:
        async with handles(lambda: opened(server, keep=1_000_000), 1) as (streams,):
            assert (await refusal(streams, [b"x" * 1000] * 100)).is_full
            assert await streams.position(Stream.USAGE) == Position()
            assert server.call("FLUSHALL") == b"+OK\r\n"
            assert await streams.advance(Stream.USAGE, [b"1"], before=Position(), after=ONE)


@pytest.mark.parametrize("text", ["garbage", "[1]", '{"a": 1}', '{"a": 1, "b": 2}', "[1, 2, 3]", '[1, "a"] ', '["1", "a"]'])
async def test_a_position_that_is_none_is_said(redis: RedisServer, text: str) -> None:
    assert redis.call("FLUSHALL") == b"+OK\r\n"
    assert redis.call("SET", "tidegate:events:position:s:usage", text) == b"+OK\r\n"
    async with handles(lambda: opened(redis), 1) as (streams,):
        with pytest.raises(StoreUnavailable, match="tidegate:events:position:s:usage is no position"):
            await streams.position(Stream.USAGE)


def test_the_caches_redis_is_refused() -> None:
    url = SecretStr("redis://:secret@h:1/1")
    with pytest.raises(StartupError, match="--events-url and --cache-url are the same Redis"):
        make_redis_streams(url, keep=1000, store="s", cache_url=SecretStr("redis://h:1/0"))
    with pytest.raises(StartupError, match=r"^--events-url is not a Redis"):
        make_redis_streams(SecretStr("http://:secret@h"), keep=1000, store="s")


async def test_one_that_evicts_is_warned_of(redis: RedisServer, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with redis_server(tmp_path, "--maxmemory-policy", "allkeys-lru") as server:
        async with handles(lambda: opened(server), 1) as (streams,):
            await streams.position(Stream.USAGE)
            await streams.position(Stream.USAGE)
    assert caplog.text.count("may evict whole streams") == 1
    assert "pa55" not in caplog.text
