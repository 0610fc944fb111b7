"""Event loop of one simulated process: it runs what is due by a clock of the simulation."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable

_TICK_S = 1e-9
"""The event loop runs timers early by up to this time."""


class SteppedLoop(asyncio.SelectorEventLoop):
    """Event loop on another clock, which stops instead of waiting."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__(_Idle(self))
        self._now_s = now_s
        self.next_s = 0.0

    def time(self) -> float:
        return self._now_s()

    def run_now(self) -> float:
        """Run what is due, and return when the next timer is."""
        while True:
            self.run_forever()
            if self.next_s > self.time() + 2 * _TICK_S:
                return self.next_s


class _Idle(selectors.DefaultSelector):
    def __init__(self, loop: SteppedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout != 0:
            self._loop.next_s = self._loop.time() + (timeout if timeout is not None else 1e6)
            self._loop.stop()
        return []
