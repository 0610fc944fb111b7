"""How the suites of the shared cache use one: it may say no at any time, so they ask again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from pydantic import SecretStr

from control_plane.cache.adapters.redis_cache import RedisCache
from control_plane.cache.ports import SharedCache
from tests.redis_server import ESCAPED_PASSWORD

LONG_S = 100.0
"""Far more than anything takes on a busy machine, and than the longest pause of the circuit breaker."""
COMPUTING_S = 10.0
"""Longer than any lookup: it is always worth it."""

EVICTING = ("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lfu")


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def redis_cache(port: int, *, max_value_bytes: int = 2**20) -> RedisCache:
    return RedisCache(SecretStr(f"redis://:{ESCAPED_PASSWORD}@127.0.0.1:{port}/0"), max_value_bytes=max_value_bytes)


@asynccontextmanager
async def running(cache: SharedCache) -> AsyncIterator[None]:
    """While the block lasts; it may not be usable yet."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(cache.run())
        try:
            yield
        finally:
            task.cancel()
    await cache.close()


@asynccontextmanager
async def usable(cache: SharedCache) -> AsyncIterator[None]:
    async with running(cache):
        await until(lambda: not cache.is_bypassed)
        yield


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not is_so():
            await asyncio.sleep(0.005)


async def answered(cache: SharedCache, keys: Sequence[bytes]) -> list[bytes | None]:
    """What is there, told by the cache and not by its being away or late."""
    counts = cache.counts
    async with asyncio.timeout(LONG_S):
        while True:
            before = counts.hits + counts.misses + counts.damaged
            found = await cache.get(keys, computing_s=COMPUTING_S)
            if counts.hits + counts.misses + counts.damaged == before + len(keys):
                return found
            await asyncio.sleep(0.01)


async def put_for_sure(cache: SharedCache, key: bytes, value: bytes, *, ttl_s: float = 60.0) -> None:
    async with asyncio.timeout(LONG_S):
        while await cache.get([key], computing_s=COMPUTING_S) != [value]:
            cache.put(key, value, ttl_s=ttl_s)
            await asyncio.sleep(0.02)
