"""Memory budget for the request bodies that all connections of both frontends buffer.

A connection that finds the budget spent waits with its client's socket unread, so that the client's own send
blocks: that is the back-pressure.
"""

from __future__ import annotations

import asyncio

from control_plane.concurrency.waiter_queue import WaiterQueue
from control_plane.core.errors import Overloaded

UNCOUNTED_BYTES = 64 * 1024
"""Bodies up to this size are not counted: `max_connections` bounds their memory."""


class BodyBudget:
    """Weighted semaphore over bytes; first come, first served, so that small bodies cannot starve a large
    one."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._free_bytes = total_bytes
        self._waiting: WaiterQueue[int] = WaiterQueue(self.release)

    @property
    def held_bytes(self) -> int:
        """The number of bytes that are granted now."""
        return self._total_bytes - self._free_bytes

    def try_acquire(self, size_bytes: int) -> bool:
        """Take bytes without waiting; False: they are not free, or others wait before us."""
        if self._waiting or size_bytes > self._free_bytes:
            return False
        self._free_bytes -= size_bytes
        return True

    async def acquire(self, size_bytes: int, timeout_s: float) -> None:
        """Wait in turn for bytes. After an exception, cancellation included, nothing is held.

        Raises:
            Overloaded: the bytes did not come free within `timeout_s`, or exceed the whole budget.
        """
        if self.try_acquire(size_bytes):
            return
        if size_bytes > self._total_bytes:
            raise Overloaded(f"a body of {size_bytes} bytes exceeds what all bodies together may hold (TIDEGATE_MAX_BUFFERED_BYTES)")
        try:
            await self._waiting.wait(size_bytes, asyncio.get_running_loop().time() + timeout_s)
        except BaseException as exc:
            self._grant()  # smaller bodies behind this one may fit now
            if isinstance(exc, TimeoutError):
                raise Overloaded(f"no memory for a body of {size_bytes} bytes came free within {timeout_s:g} s; try again") from exc
            raise

    def release(self, size_bytes: int) -> None:
        """Give back bytes, and grant them to those who wait."""
        self._free_bytes += size_bytes
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._waiting.first <= self._free_bytes:
            size_bytes = self._waiting.first
            if self._waiting.grant_first():
                self._free_bytes -= size_bytes
