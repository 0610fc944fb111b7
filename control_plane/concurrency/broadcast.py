"""Wake-up calls for readers that wait for whatever comes next: all who wait now are woken, and nobody is woken later.

Used by the feeds of events, `admin/events/feed` and `events/tenant_feeds`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Broadcast:
    """Event that wakes all tasks that wait for it at the moment, again and again."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def wake(self) -> None:
        """Wake all who wait now."""
        woken, self._next = self._next, asyncio.Event()
        woken.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait for the next `wake`, or for so long."""
        with suppress(TimeoutError):
            # Not `wait_for`, which on Python 3.11 swallows a cancellation that comes just as it is woken.
            async with asyncio.timeout(timeout_s):
                await self._next.wait()
