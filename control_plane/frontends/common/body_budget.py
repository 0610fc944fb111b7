"""One budget of bytes for the request bodies that all connections of both doors hold in memory.

Who finds it spent waits with its client's socket unread, so that the client's own send blocks: that is the back-pressure.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from control_plane.core.errors import Overloaded

UNCOUNTED_BYTES = 64 * 1024
"""A body up to this size is not counted: `max_connections` bounds those."""


class _Waiter(NamedTuple):
    size_bytes: int
    granted: asyncio.Future[None]


class BodyBudget:
    """Grants bytes first come, first served: nothing overtakes a large body that waits."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._free_bytes = total_bytes
        self._waiting: deque[_Waiter] = deque()

    @property
    def held_bytes(self) -> int:
        """Bytes that are granted now."""
        return self._total_bytes - self._free_bytes

    def try_take(self, size_bytes: int) -> bool:
        """Take at once or not at all."""
        if self._waiting or size_bytes > self._free_bytes:
            return False
        self._free_bytes -= size_bytes
        return True

    async def take(self, size_bytes: int, timeout_s: float) -> None:
        """Wait for one's turn; nothing is held after an exception.

        Raises:
            Overloaded: it did not come within `timeout_s`, or never could.
        """
        if self.try_take(size_bytes):
            return
        if size_bytes > self._total_bytes:
            raise Overloaded(f"a body of {size_bytes} bytes exceeds what all bodies together may hold (TIDEGATE_MAX_BUFFERED_BYTES)")
        waiter = _Waiter(size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.granted
        except (TimeoutError, asyncio.CancelledError) as exc:
            self._withdraw(waiter)
            if isinstance(exc, TimeoutError):
                raise Overloaded(f"no memory for a body of {size_bytes} bytes came free within {timeout_s:g} s; try again") from exc
            raise

    def give(self, size_bytes: int) -> None:
        """Give back what was taken."""
        self._free_bytes += size_bytes
        self._grant()

    def _withdraw(self, waiter: _Waiter) -> None:
        if waiter.granted.done() and not waiter.granted.cancelled():
            self.give(waiter.size_bytes)
            return
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        self._grant()  # it may have been what those behind it waited for

    def _grant(self) -> None:
        while self._waiting:
            waiter = self._waiting[0]
            has_left = waiter.granted.done()
            if not has_left and waiter.size_bytes > self._free_bytes:
                return
            self._waiting.popleft()
            if not has_left:
                self._free_bytes -= waiter.size_bytes
                waiter.granted.set_result(None)
