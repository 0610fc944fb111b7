"""Lag of an event loop, for the metrics page.

Where a process has more to do than it can, requests wait unread in the kernel's buffers, and no other figure shows that. Run by
`app/data_plane`.
"""

from __future__ import annotations

import asyncio
from collections import deque

_EVERY_S = 0.25
_LAST_S = 10.0


class LoopLag:
    """Gauge of one event loop's lag: how much later than due a task runs that a timer wakes."""

    def __init__(self) -> None:
        self._late_s: deque[float] = deque(maxlen=round(_LAST_S / _EVERY_S))

    @property
    def most_s(self) -> float:
        """Largest lag of the last ten seconds."""
        return max(self._late_s, default=0.0)

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            self._late_s.append(max(0.0, loop.time() - due_s))
