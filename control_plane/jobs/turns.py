"""Turns of claimed jobs at the servers: as many compute at a time as may, and the others wait for the end of one; used by `jobs/runner`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress


class Turns:
    """Semaphore whose size may change, first come first served."""

    def __init__(self, most: Callable[[], int]) -> None:
        """`most` says how many may have a turn now."""
        self._most = most
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it within the block."""
        if self._waiting or self._taken >= self._most():
            await self._wait()
        else:
            self._taken += 1
        try:
            yield
        finally:
            self._end()

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with suppress(ValueError):  # the end of a turn has passed it over
                    self._waiting.remove(waiter)
            else:  # it came just then
                self._end()
            raise

    def _end(self) -> None:
        self._taken -= 1
        while self._waiting and self._taken < self._most():
            waiter = self._waiting.popleft()
            if not waiter.done():  # cancelled, and its task has not run yet
                self._taken += 1
                waiter.set_result(None)
