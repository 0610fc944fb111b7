"""The class that the gateway runs."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from control_plane.cache.domain.eviction import ENTRY_BYTES, EvictingCache


class Ours:
    def __init__(self, room: int, entries: int) -> None:
        self._kept = EvictingCache(room)

    def use(self, key: int, size: int, cost: float) -> bool:
        digest = _digest(key)
        if self._kept.get(digest, 0.0) is not None:
            return True
        self._kept.put(digest, _value(size - ENTRY_BYTES), cost_units=cost, expires_s=1.0)
        return False


@lru_cache(None)
def _digest(key: int) -> bytes:
    return blake2b(key.to_bytes(8, "little"), digest_size=32).digest()


@lru_cache(None)
def _value(size: int) -> bytes:
    return bytes(size)
