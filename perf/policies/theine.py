"""The library theine, which counts entries: what is larger or dearer is the same to it."""

from __future__ import annotations

from theine import Cache


class Theine:
    def __init__(self, room: int, entries: int) -> None:
        self._cache = Cache(entries)

    def use(self, key: int, size: int, cost: float) -> bool:
        _, is_hit = self._cache.get(key)
        if not is_hit:
            self._cache.set(key, True)
        return bool(is_hit)
