"""Closing the metering of a process: what was added goes to the store, or is spilled."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.metering.metering import BATCH_SUMS
from tests.aio import settle
from tests.unit.metering.metering_bench import Bench, Does, add, running

pytestmark = pytest.mark.virtual_time


class TestClose:
    async def test_sends_what_waits(self) -> None:
        bench = Bench()
        metering = bench.metering()
        add(metering, range(BATCH_SUMS + 5))
        await metering.close(1.0)
        assert (bench.store.counted, bench.spill.kept) == (list(range(BATCH_SUMS + 5)), [])

    @pytest.mark.parametrize("does", [Does.REFUSE, Does.TAKE_AND_FAIL, Does.BREAK, Does.HANG, Does.TAKE_AND_HANG, Does.TAKE_LATE])
    async def test_what_the_store_does_not_take_in_time_is_for_the_next_process(self, does: Does) -> None:
        bench = Bench(does)
        metering = bench.metering()
        add(metering, range(BATCH_SUMS + 5))
        began_s = asyncio.get_running_loop().time()
        await metering.close(2.0)
        assert asyncio.get_running_loop().time() - began_s <= 2.0
        assert [len(batch.sums) for batch in bench.spill.kept] == [BATCH_SUMS, 5]
        assert metering.waiting == 0
        async with running(bench.metering()) as later:
            add(later, range(BATCH_SUMS + 5, BATCH_SUMS + 9))
            await asyncio.sleep(1.0)
        assert (bench.store.counted, bench.spill.kept) == (list(range(BATCH_SUMS + 9)), [])

    async def test_that_is_cancelled_spills_at_once(self) -> None:
        bench = Bench(Does.HANG)
        metering = bench.metering()
        add(metering, range(3))
        async with asyncio.TaskGroup() as tasks:
            closing = tasks.create_task(metering.close(1000.0))
            await settle()
            assert bench.store.asked == 1
            closing.cancel()
        assert closing.cancelled()
        assert [[key.model for key, _ in batch.sums] for batch in bench.spill.kept] == [["0", "1", "2"]]

    async def test_what_cannot_be_spilled_either_counts_as_dropped(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench(Does.REFUSE)
        bench.spill.is_full = True
        metering = bench.metering()
        add(metering, [*range(BATCH_SUMS + 5), BATCH_SUMS])
        await metering.close(1.0)
        assert metering.dropped == BATCH_SUMS + 6
        assert "usage of 6 requests is lost: no space left" in caplog.messages

    async def test_what_comes_after_it_counts_as_dropped(self) -> None:
        metering = Bench().metering()
        await metering.close(1.0)
        add(metering, range(2))
        assert (metering.dropped, metering.waiting) == (2, 0)
