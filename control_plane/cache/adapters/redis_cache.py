"""Redis adapter of `cache/ports.SharedCache`: best effort, with every value checked, and no wait longer than what a hit may save.

One connection is for lookups and one for writes. Both are opened, probed and reopened in the background: no request waits to find
out that Redis is unavailable, and only few to find out that it has become slow. Wired by `app/`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from pydantic import SecretStr

from control_plane.cache.adapters.redis_cache_connection import CacheConnection
from control_plane.cache.adapters.redis_cache_lookups import CacheLookups
from control_plane.cache.adapters.redis_cache_writes import CacheWrites
from control_plane.core.errors import StartupError
from control_plane.storage.redis import place_of, server_of
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts

_log = logging.getLogger(__name__)

_EVICTING = "set `maxmemory` and `maxmemory-policy allkeys-lfu` there"


class RedisCache:
    """Client of the shared cache for one process; until `run` has connected every lookup is a miss and every
    write is dropped.
    """

    def __init__(self, url: SecretStr, *, max_value_bytes: int) -> None:
        """Prepare without connecting. Raises StartupError: the URL is not one of a Redis."""
        self.counts = SharedCacheCounts()
        self._place = CacheConnection(url).place
        self._lookups = CacheLookups(CacheConnection(url), self.counts, on_first_connection=self._look_at_memory)
        self._writes = CacheWrites(CacheConnection(url), self.counts, max_value_bytes=max_value_bytes)

    @property
    def is_bypassed(self) -> bool:
        """Whether the circuit breaker is open, so that no lookups are sent now."""
        return self._lookups.is_bypassed

    @property
    def answer_s(self) -> float:
        return self._lookups.answer_s

    async def get(self, keys: Sequence[bytes], *, computing_s: float) -> list[bytes | None]:
        return await self._lookups.get(keys, computing_s=computing_s)

    def put(self, key: bytes, value: bytes, *, ttl_s: float) -> None:
        # A Redis that does not answer lookups is not written to either: it would have nothing but work from
        # it.
        if self.is_bypassed:
            self.counts.dropped += 1
        else:
            self._writes.put(key, value, ttl_s=ttl_s)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._lookups.run(), name="shared-cache-lookups")
            tasks.create_task(self._writes.run(), name="shared-cache-writes")

    async def close(self) -> None:
        """Do nothing: both connections end with `run`."""

    async def _look_at_memory(self, connection: CacheConnection) -> None:
        """Warn of a Redis that is not configured as a cache: one without a memory limit, or one that refuses
        writes when full.
        """
        found = await connection.memory()
        if found.get("maxmemory") == "0":
            _log.warning("the shared cache at %s grows until its machine has no memory left: %s", self._place, _EVICTING)
        elif found.get("maxmemory_policy") == "noeviction":
            _log.warning("the shared cache at %s keeps nothing new once it is full: %s", self._place, _EVICTING)


def make_redis_cache(url: SecretStr, *, state_url: SecretStr | None, max_value_bytes: int) -> RedisCache:
    """Make the client without connecting. Raises StartupError: the URL is not one of a Redis, or is the one
    that holds the state.
    """
    if state_url is not None and server_of(url, setting="--cache-url") == server_of(state_url, setting="--state-url"):
        place = place_of(url, setting="--cache-url")
        raise StartupError(
            f"--cache-url {place} is the Redis of --state-url, which must not evict what a cache must: give the cache one of its own"
        )
    return RedisCache(url, max_value_bytes=max_value_bytes)
