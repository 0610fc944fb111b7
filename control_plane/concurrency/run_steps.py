"""Runs long codec work cooperatively: in slices, of which those of all requests together take a small part of each turn of the event loop.

If each of them ran a slice in every turn, one client with many large bodies would make all turns long.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, TypeVar

from control_plane.core.algorithms.steps import Steps

T = TypeVar("T")

_TURN_S = 0.0005
"""Seconds of each turn in which slices are begun, mostly one, which may take 2 ms."""
_PART, _MOST_S = 0.25, 0.01
"""Of a turn that took longer they take this part, or who has large bodies would get nothing beside many small requests; and a bound
on that: a long turn must not make the next one as long."""


async def run_in_steps(steps: Steps[T]) -> T:
    """Run `steps` to their result, yielding to the loop at each pause; work without a pause yields never."""
    try:
        next(steps)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    return await _lane().go_on(steps)


class _StepLane:
    """Queue of the work that goes on in slices, by turns, on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[tuple[Steps[Any], asyncio.Future[Any]]] = deque()
        self._ran_at_s = 0.0

    async def go_on(self, steps: Steps[T]) -> T:
        """Run the rest of `steps`. Raises what they raise."""
        done: asyncio.Future[T] = self.loop.create_future()
        if not self._waiting:
            self._ran_at_s = time.perf_counter()
            self.loop.call_soon(self._run)
        self._waiting.append((steps, done))
        try:
            return await done
        finally:
            steps.close()  # its caller may have left

    def _run(self) -> None:
        """Run slices of one work after the other for a part of this turn, and at least one."""
        now_s = time.perf_counter()
        until_s = now_s + min(max(_TURN_S, _PART * (now_s - self._ran_at_s)), _MOST_S)
        while self._waiting:
            steps, done = self._waiting.popleft()
            if done.done():
                continue
            try:
                next(steps)
                self._waiting.append((steps, done))
            except StopIteration as end:
                done.set_result(end.value)
            except Exception as exc:  # the caller's, who awaits it
                done.set_exception(exc)
            if time.perf_counter() >= until_s:
                break
        self._ran_at_s = time.perf_counter()
        if self._waiting:
            self.loop.call_soon(self._run)


_last: _StepLane | None = None
"""The lane of the loop that asked last: a process has one, but tests have one after the other."""


def _lane() -> _StepLane:
    global _last
    loop = asyncio.get_running_loop()
    if _last is None or _last.loop is not loop:
        _last = _StepLane(loop)
    return _last
