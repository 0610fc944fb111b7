"""Wake-up calls for tasks that wait for whatever comes next: all that wait now are woken, and none that comes later."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Broadcast:
    """Event that wakes all tasks that wait for it at the moment, again and again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Wake all tasks that wait now; where none does this costs next to nothing."""
        self._event.set()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the next `wake`, or for so long."""
        self._event.clear()  # of the last time; who was woken then goes on all the same
        with suppress(TimeoutError):
            # Not `wait_for`, which on Python 3.11 swallows a cancellation that comes just as it is woken.
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
