"""Timeout for a peer's answer, of which a pause of this process's own event loop uses up at most half."""

from __future__ import annotations

import asyncio
from types import TracebackType


class LoopTimeout:
    """Variant of `asyncio.timeout` in two halves: the second half is timed from when the loop handles the end
    of the first.

    After a pause of the process (throttled, busy, stopped) timers and answers are due at once, and the event
    loop runs the timers first: a plain timeout would blame a peer that answered long ago. Here a pause,
    however long, uses up one half at most, and the loop reads answers during the other.
    """

    def __init__(self, delay_s: float) -> None:
        self._half_s = delay_s / 2
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._limit.__aenter__()
        self._timer = self._loop.call_later(self._half_s, self._begin_second_half)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, traceback)

    def _begin_second_half(self) -> None:
        self._timer = self._loop.call_later(self._half_s, self._expire)

    def _expire(self) -> None:
        self._limit.reschedule(self._loop.time())
