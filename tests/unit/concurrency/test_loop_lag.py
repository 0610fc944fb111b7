from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from control_plane.concurrency.loop_lag import LoopLag
from tests.aio import hold_up


@contextlib.asynccontextmanager
async def measured() -> AsyncIterator[LoopLag]:
    lag = LoopLag()
    async with asyncio.TaskGroup() as tasks:
        measuring = tasks.create_task(lag.run())
        yield lag
        measuring.cancel()


@pytest.mark.virtual_time
async def test_a_loop_that_has_time_is_not_late() -> None:
    async with measured() as lag:
        assert lag.most_s == 0.0
        await asyncio.sleep(20.0)
        assert lag.most_s == pytest.approx(0.0, abs=1e-6)


@pytest.mark.virtual_time
async def test_what_holds_the_loop_up_is_seen_for_ten_seconds() -> None:
    async with measured() as lag:
        await asyncio.sleep(1.1)
        hold_up(0.5)
        await asyncio.sleep(1.0)
        assert lag.most_s == pytest.approx(0.35)
        await asyncio.sleep(8.5)
        assert lag.most_s == pytest.approx(0.35)
        await asyncio.sleep(1.0)
        assert lag.most_s == pytest.approx(0.0, abs=1e-6)
