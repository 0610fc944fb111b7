"""One timer for many deadlines: it fires for each in time, and is not set anew for those that come later."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from control_plane.concurrency.deadline_timer import DeadlineTimer

pytestmark = pytest.mark.virtual_time


class Calls:
    """Calls that end when their deadline has passed."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.open: list[float] = []
        self.ended: list[tuple[float, float]] = []
        self.looks = 0
        self.timer = DeadlineTimer(self.loop)

    def begin(self, in_s: float) -> float:
        deadline_s = self.loop.time() + in_s
        self.open.append(deadline_s)
        self.timer.cover(deadline_s, self.expire)
        return deadline_s

    def expire(self, now_s: float) -> float:
        self.looks += 1
        self.ended += [(each, self.loop.time()) for each in self.open if each <= now_s]
        self.open = [each for each in self.open if each > now_s]
        return min(self.open, default=inf)


async def test_each_call_ends_at_its_deadline_in_whatever_order_they_begin() -> None:
    calls = Calls()
    deadlines = [calls.begin(in_s) for in_s in (30.0, 5.0, 60.0, 1.0)]
    await asyncio.sleep(100.0)
    assert calls.ended == [(each, each) for each in sorted(deadlines)]
    assert calls.timer.due_s == inf


async def test_calls_that_are_answered_leave_one_timer_that_fires_once_in_a_deadline() -> None:
    calls = Calls()
    for _ in range(1000):
        calls.begin(30.0)
        await asyncio.sleep(0.1)
        calls.open.pop()
    assert calls.looks <= 4


async def test_nothing_fires_after_a_cancel_until_the_next_deadline_is_covered() -> None:
    calls = Calls()
    calls.begin(1.0)
    calls.timer.cancel()
    await asyncio.sleep(2.0)
    assert not calls.looks
    later = calls.begin(1.0)
    await asyncio.sleep(2.0)
    assert calls.ended[-1] == (later, later)


async def test_a_timer_that_fires_early_counts_as_in_time() -> None:
    """uvloop rounds a timer to milliseconds: seen as too early, it would be set again and again."""
    seen: list[float] = []
    loop = asyncio.get_running_loop()

    def expire(now_s: float) -> float:
        seen.append(now_s)
        return inf

    timer = DeadlineTimer(loop)
    timer.cover(loop.time() + 5.0, expire)
    timer._fire(expire)
    assert seen == [loop.time() + 5.0]
