"""Memory budget for the request bodies that all connections of both frontends buffer.

A connection that finds the budget spent waits with its client's socket unread, so that the client's own send
blocks: that is the back-pressure.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from control_plane.core.errors import Overloaded

UNCOUNTED_BYTES = 64 * 1024
"""Bodies up to this size are not counted: `max_connections` bounds their memory."""


class _Waiter(NamedTuple):
    size_bytes: int
    granted: asyncio.Future[None]


class BodyBudget:
    """Weighted semaphore over bytes; first come, first served, so that small bodies cannot starve a large
    one."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._free_bytes = total_bytes
        self._waiting: deque[_Waiter] = deque()

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

    def release(self, size_bytes: int) -> None:
        """Give back bytes, and grant them to those who wait."""
        self._free_bytes += size_bytes
        self._grant()

    def _withdraw(self, waiter: _Waiter) -> None:
        if waiter.granted.done() and not waiter.granted.cancelled():
            self.release(waiter.size_bytes)  # the grant and the cancellation came in the same turn of the loop
            return
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        self._grant()  # smaller bodies behind this one may fit now

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
