"""What every shared cache does, the fake too; and what only a Redis can be asked about."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.cache.domain.shared_value import name_of
from control_plane.cache.ports import SharedCache
from tests.contract.cache.caches import COMPUTING_S, EVICTING, LONG_S, answered, key, put_for_sure, redis_cache, usable
from tests.fakes.stores.shared_cache import FakeCache, FakeSharedCache
from tests.redis_server import PASSWORD, RedisServer, redis_server

LIMIT = 1000
Opening = Callable[[], SharedCache]


@pytest.fixture(scope="module")
def cache_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("cache"), *EVICTING) as server:
        yield server


@pytest.fixture(params=["fake", "redis"])
def opening(request: pytest.FixtureRequest) -> Opening:
    """Handles of one cache, which is empty."""
    if request.param == "fake":
        held = FakeCache()
        return lambda: FakeSharedCache(held, max_value_bytes=LIMIT)
    server: RedisServer = request.getfixturevalue("cache_server")
    server.call("FLUSHALL")
    return lambda: redis_cache(server.port, max_value_bytes=LIMIT)


async def test_what_was_put_is_found_by_all_in_the_order_asked_for(opening: Opening) -> None:
    one, other = opening(), opening()
    async with usable(one), usable(other):
        await put_for_sure(one, key(1), b"first")
        await put_for_sure(other, key(2), b"")
        await put_for_sure(other, key(3), bytes(range(256)))
        keys = [key(3), key(9), key(1), key(2), key(1)]
        for cache in (one, other):
            assert await answered(cache, keys) == [bytes(range(256)), None, b"first", b"", b"first"]
        assert await answered(one, []) == []


async def test_the_last_one_put_holds(opening: Opening) -> None:
    cache = opening()
    async with usable(cache):
        await put_for_sure(cache, key(1), b"old")
        await put_for_sure(cache, key(1), b"new")
        assert await answered(cache, [key(1)]) == [b"new"]


async def test_it_lasts_a_second_at_least_and_not_for_ever(opening: Opening) -> None:
    cache = opening()
    async with usable(cache):
        await put_for_sure(cache, key(1), b"x", ttl_s=0.001)
        await put_for_sure(cache, key(2), b"y", ttl_s=3600.9)
        async with asyncio.timeout(LONG_S):
            while await answered(cache, [key(1)]) != [None]:
                await asyncio.sleep(0.05)
        assert await answered(cache, [key(2)]) == [b"y"]


async def test_what_is_larger_than_the_limit_is_dropped_and_counted(opening: Opening) -> None:
    cache = opening()
    async with usable(cache):
        await put_for_sure(cache, key(1), b"x" * LIMIT)
        dropped = cache.counts.dropped
        cache.put(key(2), b"x" * (LIMIT + 1), ttl_s=60.0)
        assert cache.counts.dropped == dropped + 1
        await put_for_sure(cache, key(3), b"behind it")
        assert await answered(cache, [key(2), key(1)]) == [None, b"x" * LIMIT]


async def test_hits_misses_and_writes_are_counted(opening: Opening) -> None:
    cache = opening()
    async with usable(cache):
        await put_for_sure(cache, key(1), b"x")
        hits, misses = cache.counts.hits, cache.counts.misses
        await answered(cache, [key(1), key(2), key(3)])
        assert (cache.counts.hits - hits, cache.counts.misses - misses) == (1, 2)
        assert cache.counts.written >= 1
        assert (cache.counts.damaged, cache.counts.failed) == (0, 0)


async def test_lookups_at_once_get_each_its_own(opening: Opening) -> None:
    cache = opening()
    async with usable(cache):
        for number in range(50):
            cache.put(key(number), b"%d" % number, ttl_s=60.0)
        await put_for_sure(cache, key(99), b"behind them")
        wanted = [[key(number), key(1000 + number), key(number + 1)] for number in range(49)]
        found = await asyncio.gather(*(cache.get(keys, computing_s=COMPUTING_S) for keys in wanted for _ in range(4)))
        for index, values in enumerate(found):
            number = index // 4
            assert values in ([b"%d" % number, None, b"%d" % (number + 1)], [None, None, None])
        assert [b"7", None, b"8"] in found


async def test_many_keys_are_found_in_the_order_asked_for(opening: Opening) -> None:
    cache = opening()
    async with usable(cache):
        for number in range(300):
            cache.put(key(number), b"%d" % number, ttl_s=60.0)
        await put_for_sure(cache, key(999), b"behind them")
        numbers = [*range(299, -1, -3), *range(1000, 1100), *range(300)]
        expected = [b"%d" % number if number < 300 else None for number in numbers]
        assert await answered(cache, [key(number) for number in numbers]) == expected


async def test_of_many_keys_what_comes_in_time_is_found(cache_server: RedisServer) -> None:
    cache = redis_cache(cache_server.port)
    async with usable(cache):
        await put_for_sure(cache, key(1), b"x")
        found = 0
        async with asyncio.timeout(LONG_S):
            while not 0 < found < 20_000:
                values = await cache.get([key(1)] * 20_000, computing_s=random.uniform(0.025, 0.5))  # it takes a tenth of a second
                found = values.count(b"x")
                assert found + values.count(None) == 20_000
        assert cache.counts.late >= 20_000 - found
        assert await answered(cache, [key(1)]) == [b"x"]


async def test_a_lookup_ends_when_it_is_cancelled_and_the_next_is_answered(opening: Opening) -> None:
    cache = opening()
    async with usable(cache):
        await put_for_sure(cache, key(1), b"mine")
        await put_for_sure(cache, key(2), b"other")
        for steps in range(12):
            async with asyncio.TaskGroup() as tasks:
                left = tasks.create_task(cache.get([key(2)], computing_s=COMPUTING_S))
                for _ in range(steps):
                    await asyncio.sleep(0)
                left.cancel()
                assert await cache.get([key(1)], computing_s=COMPUTING_S) in ([b"mine"], [None])
        assert await answered(cache, [key(1)]) == [b"mine"]


async def test_one_that_does_not_run_has_nothing_and_takes_nothing(cache_server: RedisServer) -> None:
    cache = redis_cache(cache_server.port)
    assert cache.is_bypassed
    assert await cache.get([key(1), key(2)], computing_s=COMPUTING_S) == [None, None]
    cache.put(key(1), b"x", ttl_s=60.0)
    assert (cache.counts.away, cache.counts.dropped) == (2, 1)
    await cache.close()
    await cache.close()


@settings(max_examples=3, deadline=None)
@given(entries=st.dictionaries(st.binary(min_size=32, max_size=32), st.binary(max_size=500), max_size=30))
async def test_any_bytes_are_kept_as_they_are(cache_server: RedisServer, entries: dict[bytes, bytes]) -> None:
    cache_server.call("FLUSHALL")
    cache = redis_cache(cache_server.port)
    async with usable(cache):
        for name, value in entries.items():
            cache.put(name, value, ttl_s=60.0)
        await put_for_sure(cache, key(2**200), b"behind them")
        assert await answered(cache, list(entries)) == list(entries.values())


async def test_names_and_lifetimes_in_redis(cache_server: RedisServer) -> None:
    cache_server.call("FLUSHALL")
    cache = redis_cache(cache_server.port)
    async with usable(cache):
        await put_for_sure(cache, b"k" * 32, b"x", ttl_s=100.9)
    assert name_of(b"k" * 32) == b"tidegate:cache:01:" + b"k" * 32
    assert 0 < int(cache_server.call("TTL", "tidegate:cache:01:" + "k" * 32)[1:]) <= 100


async def test_who_would_compute_sooner_than_redis_answers_is_not_kept(cache_server: RedisServer) -> None:
    cache = redis_cache(cache_server.port)
    async with usable(cache):
        await put_for_sure(cache, key(1), b"x")
        slow = cache.counts.slow
        assert await cache.get([key(1)], computing_s=1e-6) == [None]
        assert cache.counts.slow == slow + 1
        assert cache.answer_s > 1e-6


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param(("--maxmemory", "0"), "grows until its machine has no memory left: set `maxmemory`", id="no-limit"),
        pytest.param(
            ("--maxmemory", "64mb", "--maxmemory-policy", "noeviction"), "keeps nothing new once it is full: set", id="no-eviction"
        ),
        pytest.param(("--maxmemory", "64mb", "--maxmemory-policy", "volatile-ttl"), None, id="evicts"),
        pytest.param(("--maxmemory", "0", "--rename-command", "INFO", ""), None, id="does-not-tell"),
    ],
)
async def test_what_redis_is_told_to_do_once_it_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: tuple[str, ...], says: str | None
) -> None:
    with redis_server(tmp_path, *options) as server:
        cache = redis_cache(server.port)
        async with usable(cache):
            await put_for_sure(cache, key(1), b"x")
    warned = [record.getMessage() for record in caplog.records if "set `maxmemory`" in record.getMessage()]
    assert len(warned) == (1 if says else 0)
    assert says is None or f"the shared cache at redis://127.0.0.1:{server.port}/0 {says}" in warned[0]
    assert PASSWORD not in caplog.text
