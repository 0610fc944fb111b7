from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from control_plane.telemetry.shared_cache_counts import SharedCacheCounts


@dataclass
class FakeCache:
    """Entries of the shared cache: key -> (value, when it expires). Several `FakeSharedCache`s may share
    one."""

    entries: dict[bytes, tuple[bytes, float]] = field(default_factory=dict)


@dataclass
class FakeSharedCache:
    """In-memory `cache/ports.SharedCache`. `is_bypassed` is its circuit breaker: while open, the cache is not
    used. Each lookup takes `delay_s`, and computing takes longer."""

    cache: FakeCache = field(default_factory=FakeCache)
    is_bypassed: bool = False
    delay_s: float = 0.0
    max_value_bytes: int = 2**20
    counts: SharedCacheCounts = field(default_factory=SharedCacheCounts)
    now_s: Callable[[], float] = time.monotonic

    @property
    def answer_s(self) -> float:
        return self.delay_s

    async def get(self, keys: Sequence[bytes], *, computing_s: float) -> list[bytes | None]:
        if self.is_bypassed:
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
        if self.is_bypassed or len(value) > self.max_value_bytes:
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
