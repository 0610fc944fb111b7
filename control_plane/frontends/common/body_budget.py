"""Memory budget for the request bodies that all connections of both frontends buffer.

A connection that finds the budget spent waits with its client's socket unread, so that the client's own send
blocks: that is the back-pressure.
"""

from __future__ import annotations

import asyncio

from control_plane.concurrency.weighted_semaphore import WeightedSemaphore
from control_plane.core.errors import Overloaded

UNCOUNTED_BYTES = 64 * 1024
"""Bodies up to this size are not counted: `max_connections` bounds their memory, over gRPC with a bound for each connection
(`frontends/grpc/call`)."""


class BodyBudget:
    """Weighted semaphore over bytes."""

    def __init__(self, total_bytes: int) -> None:
        self._bytes = WeightedSemaphore(total_bytes)

    @property
    def held_bytes(self) -> int:
        """The number of bytes that are granted now."""
        return self._bytes.total - self._bytes.free

    def try_acquire(self, size_bytes: int) -> bool:
        """Take bytes without waiting; False: they are not free, or others wait before us."""
        return self._bytes.try_acquire(size_bytes)

    async def acquire(self, size_bytes: int, timeout_s: float) -> None:
        """Wait in turn for bytes. After an exception, cancellation included, nothing is held.

        Raises:
            Overloaded: the bytes did not come free within `timeout_s`, or exceed the whole budget.
        """
        # No wait would help, and it would hold up all who wait behind it.
        if size_bytes > self._bytes.total:
            raise Overloaded(f"a body of {size_bytes} bytes exceeds what all bodies together may hold (TIDEGATE_MAX_BUFFERED_BYTES)")
        try:
            await self._bytes.acquire(size_bytes, deadline_s=asyncio.get_running_loop().time() + timeout_s)
        except TimeoutError as exc:
            raise Overloaded(f"no memory for a body of {size_bytes} bytes came free within {timeout_s:g} s; try again") from exc

    def release(self, size_bytes: int) -> None:
        """Give back bytes, and grant them to those who wait."""
        self._bytes.release(size_bytes)
