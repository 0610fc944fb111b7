"""Keys in the order of their use, and the bytes that they hold."""

from __future__ import annotations

from collections import OrderedDict


class SizedQueue(OrderedDict[int, int]):
    """Sizes by key, the least recently used first."""

    held = 0

    def add(self, key: int, size: int) -> None:
        self[key] = size
        self.held += size

    def drop(self, key: int) -> int:
        size = self.pop(key)
        self.held -= size
        return size

    def oldest(self) -> int:
        return next(iter(self))
