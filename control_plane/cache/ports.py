"""Port of the shared cache: level two of the response cache, which several gateways use together.

`cache/response_cache` calls it, `cache/adapters/redis_cache` implements it. Keys and values are bytes here: a
shared cache knows nothing of models, requests or protocols.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from control_plane.telemetry.shared_cache_counts import SharedCacheCounts


class SharedCache(Protocol):
    """Shared cache behind the local one. It is best effort: a lookup that fails, is late or finds a damaged
    value is a miss.
    """

    @property
    def counts(self) -> SharedCacheCounts:
        """Live counters of the outcomes of lookups and writes; the same object is updated as they go on."""

    @property
    def is_bypassed(self) -> bool:
        """Whether the circuit breaker is open: no lookups are sent now, since the cache is unreachable or
        failed too often.
        """

    @property
    def answer_s(self) -> float:
        """Median latency of a lookup in seconds, delays of this process's own event loop included; 0.0 while
        unknown.
        """

    async def get(self, keys: Sequence[bytes], *, computing_s: float) -> list[bytes | None]:
        """Look up `keys` and return their values in the same order, None for each miss.

        `computing_s` is how long computing all of them would take: the call stops waiting when computing is
        the better bet, and counts as misses what has not come by then. Raises nothing of its own; a
        cancellation ends the wait at once.
        """

    def put(self, key: bytes, value: bytes, *, ttl_s: float) -> None:
        """Queue a write and return at once. `ttl_s` is cut to whole seconds, at least one; a write that finds
        the queue full is dropped and counted.
        """

    async def run(self) -> None:
        """Connect, answer lookups and write what was put, reconnecting after outages, until cancelled."""

    async def close(self) -> None: ...
