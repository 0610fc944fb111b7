"""A Triton that does nothing before it was ever live is replaced ahead of the start timeout, and one that is at work is not."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from control_plane.core.errors import StartupError
from tests.unit.triton.supervisor_lab import Lab, cancelled_after

_STALL_S = 0.24


def stalling(live_after_s: float) -> Lab:
    """In real time, as what is looked at is looked at in a thread."""
    lab = Lab()
    lab.stall_timeout_s, lab.live_after_s, lab.restore_takes_s = _STALL_S, live_after_s, 0.0
    lab.work = lambda: 7
    return lab


async def test_one_that_does_nothing_is_ended_and_another_one_started() -> None:
    lab = stalling(live_after_s=9.0)

    async def stall_once() -> None:
        await lab.until("started")
        await lab.until("gone")
        lab.live_after_s = 0.0
        await lab.until("up")

    await cancelled_after(lab, stall_once)
    assert len(lab.lives) == 2


async def test_a_second_one_that_does_nothing_is_an_error_that_names_the_setting() -> None:
    lab = stalling(live_after_s=9.0)
    with pytest.raises(StartupError, match=r"did nothing for 0\.24 s: .*TIDEGATE_START_STALL_TIMEOUT_S\); .*the end of the log"):
        async with asyncio.timeout(5.0):  # the start timeout is 10
            await lab.supervisor().run()
    assert (len(lab.lives), "up" in lab.events) == (2, False)


async def test_one_that_is_at_work_is_left_alone_however_slow() -> None:
    lab, steps = stalling(live_after_s=1.0), count()
    lab.work = lambda: next(steps) // 8  # something in every eighth look: of twelve that are counted

    await cancelled_after(lab, lambda: lab.until("up"))
    assert len(lab.lives) == 1


async def test_one_of_which_nothing_is_known_is_left_alone() -> None:
    lab = stalling(live_after_s=1.0)
    lab.work = lambda: None

    await cancelled_after(lab, lambda: lab.until("up"))
    assert len(lab.lives) == 1


async def test_one_that_is_live_may_do_nothing() -> None:
    lab = stalling(live_after_s=0.0)

    async def idle() -> None:
        await lab.until("up")
        await asyncio.sleep(3 * _STALL_S)

    await cancelled_after(lab, idle)
    assert len(lab.lives) == 1
