from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from control_plane.telemetry.shared_cache_counts import SharedCacheCounts


@dataclass
class FakeCache:
    """What lies there, with when it expires; several handles may share it."""

    entries: dict[bytes, tuple[bytes, float]] = field(default_factory=dict)


@dataclass
class FakeSharedCache:
    """`cache/ports.SharedCache` in memory; while it `is_open` it is away; each lookup takes `delay_s`, where computing takes longer."""

    cache: FakeCache = field(default_factory=FakeCache)
    is_open: bool = False
    delay_s: float = 0.0
    max_value_bytes: int = 2**20
    counts: SharedCacheCounts = field(default_factory=SharedCacheCounts)
    now_s: Callable[[], float] = time.monotonic

    @property
    def answer_s(self) -> float:
        return self.delay_s

    async def get(self, keys: Sequence[bytes], *, computing_s: float) -> list[bytes | None]:
        if self.is_open:
            self.counts.away += len(keys)
            return [None] * len(keys)
        if self.delay_s > computing_s:
            self.counts.slow += len(keys)
            return [None] * len(keys)
        await asyncio.sleep(self.delay_s)
        found = [self._live(key) for key in keys]
        self.counts.hits += len(found) - found.count(None)
        self.counts.misses += found.count(None)
        return found

    def put(self, key: bytes, value: bytes, *, ttl_s: float) -> None:
        if self.is_open or len(value) > self.max_value_bytes:
            self.counts.dropped += 1
            return
        self.cache.entries[key] = (value, self.now_s() + max(1, int(ttl_s)))
        self.counts.written += 1

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        pass

    def _live(self, key: bytes) -> bytes | None:
        value, expires_s = self.cache.entries.get(key, (None, 0.0))
        return value if expires_s > self.now_s() else None
