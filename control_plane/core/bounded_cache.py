"""Memo table with a bound in bytes, for what is parsed or built once and needed again, such as request heads.

The bound is needed because peers decide what is put here. Used by the frontends on the hot path.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

MAX_BYTES = 2**20
"""Default bound of one table; the data plane has five of them."""

MAX_ENTRY_BYTES = 6 * 2**10
"""Default bound of one entry, Python objects included: enough for a request head of about 2 KiB, such as one
with a token. Larger heads are rare, or differ from call to call."""

_ENTRY_BYTES = 200
"""Overhead of one entry: its slot in the dictionary and the objects that belong to it."""


class BoundedCache(Generic[KeyT, ValueT]):
    """Memo table of small entries that is cleared when it is full.

    Clearing is cheaper on each lookup than keeping an order (LRU), and what recurs is soon there again.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, *, max_entry_bytes: int = MAX_ENTRY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._max_entry_bytes = max_entry_bytes
        self._kept: dict[KeyT, ValueT] = {}
        self._bytes = 0
        self.get = self._kept.get  # the dictionary's own method: lookups cost no call of Python code

    @property
    def is_empty(self) -> bool:
        return not self._kept

    def forget(self, key: KeyT, *, size_bytes: int) -> None:
        """Remove an entry that is out of date; `size_bytes` must be what it was added with."""
        if self._kept.pop(key, None) is not None:
            self._bytes -= size_bytes + _ENTRY_BYTES

    def keep(self, key: KeyT, value: ValueT, *, size_bytes: int) -> None:
        """Add an entry unless it is too large or already there; `size_bytes` is about what key and value
        take.
        """
        size_bytes += _ENTRY_BYTES
        if size_bytes > self._max_entry_bytes or key in self._kept:
            return
        self._bytes += size_bytes
        if self._bytes > self._max_bytes:
            self._kept.clear()
            self._bytes = size_bytes
        self._kept[key] = value
