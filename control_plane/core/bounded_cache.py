"""What was read or built once and is asked for again, within a bound in bytes: peers decide what comes here."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

MAX_BYTES = 2**20
"""Of most; the data plane has five such."""

MAX_ENTRY_BYTES = 6 * 2**10
"""As counted with its objects: a head of about 2 KiB, such as one with a token. What is larger is rare, or differs from call to call."""

_ENTRY_BYTES = 200
"""The place in the dictionary and what belongs to it."""


class BoundedCache(Generic[KeyT, ValueT]):
    """Keeps what is small; begins anew when it is full, since what recurs is soon there again."""

    def __init__(self, max_bytes: int = MAX_BYTES, *, max_entry_bytes: int = MAX_ENTRY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._max_entry_bytes = max_entry_bytes
        self._kept: dict[KeyT, ValueT] = {}
        self._bytes = 0
        self.get = self._kept.get

    @property
    def is_empty(self) -> bool:
        return not self._kept

    def forget(self, key: KeyT, *, size_bytes: int) -> None:
        """One that is out of date; `size_bytes` as it was kept with."""
        if self._kept.pop(key, None) is not None:
            self._bytes -= size_bytes + _ENTRY_BYTES

    def keep(self, key: KeyT, value: ValueT, *, size_bytes: int) -> None:
        """`size_bytes`: about what key and value take."""
        size_bytes += _ENTRY_BYTES
        if size_bytes > self._max_entry_bytes or key in self._kept:
            return
        self._bytes += size_bytes
        if self._bytes > self._max_bytes:
            self._kept.clear()
            self._bytes = size_bytes
        self._kept[key] = value
