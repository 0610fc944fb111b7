"""A time limit for the answers of others that hardly counts what this process's own event loop is late by."""

from __future__ import annotations

import asyncio
from types import TracebackType


class LoopTimeout:
    """`asyncio.timeout` in two halves, of which the second begins when the loop gets to the end of the first.

    A process that was held up (throttled, busy, paused) finds timers and answers both due, and timers come first:
    it would blame a peer that has answered long ago. Here a pause, however long, takes half of the time at most,
    and in the other half answers are read.
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
