"""Memo table with a bound in bytes, for what is parsed or built once and needed again, such as request heads.

The bound is needed because peers decide what is put here. Used by the frontends on the hot path.
"""

from __future__ import annotations

from collections.abc import Hashable, KeysView
from typing import Generic, Self, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

MAX_BYTES = 2**20
"""Default bound of one table; the data plane has five of them."""

MAX_ENTRY_BYTES = 6 * 2**10
"""Default bound of one entry, Python objects included: enough for a request head of about 2 KiB, such as one
with a token. Larger heads are rare, or differ from call to call."""

_ENTRY_BYTES = 300
"""Overhead of one entry: its slots in dictionaries and the objects that belong to it."""


class BoundedCache(Generic[KeyT, ValueT]):
    """Memo table of small entries in two generations: when the younger one is full, the older one is dropped.

    That is cheaper on each lookup than keeping an order (LRU), and an entry too many costs others no more than
    the older half of the table.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, *, max_entry_bytes: int = MAX_ENTRY_BYTES) -> None:
        self._max_bytes = max_bytes // 2
        self._max_entry_bytes = max_entry_bytes
        self._kept: dict[KeyT, ValueT] = {}
        self._young: dict[KeyT, int] = {}
        """Sizes of the younger generation's entries, `_young_bytes` together."""
        self._young_bytes = 0
        self._old: dict[KeyT, int] = {}
        self.keys: KeysView[KeyT] = self._kept.keys()
        """What is kept; a view that stays true."""
        self.get = self._kept.get  # the dictionary's own method: lookups cost no call of Python code

    @classmethod
    def of_entries(cls, max_entries: int) -> Self:
        """Make a table of at most `max_entries` entries that are added without a size."""
        return cls(max_entries * _ENTRY_BYTES)

    def keep(self, key: KeyT, value: ValueT, *, size_bytes: int = 0) -> None:
        """Add an entry unless it is too large or already there; `size_bytes` is about what key and value
        take.
        """
        size_bytes += _ENTRY_BYTES
        if size_bytes > self._max_entry_bytes or key in self._kept:
            return
        if self._young_bytes + size_bytes > self._max_bytes:
            for old in self._old:
                del self._kept[old]
            self._old, self._young, self._young_bytes = self._young, {}, 0
        self._kept[key] = value
        self._young[key] = size_bytes
        self._young_bytes += size_bytes

    def forget(self, key: KeyT) -> None:
        """Remove an entry that is out of date."""
        if self._kept.pop(key, None) is not None and self._old.pop(key, None) is None:
            self._young_bytes -= self._young.pop(key)

    def clear(self) -> None:
        """Remove all entries."""
        for table in (self._kept, self._young, self._old):
            table.clear()
        self._young_bytes = 0
