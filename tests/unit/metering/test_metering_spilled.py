"""Batches of usage that an earlier process has spilled."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.metering.metering import PERIOD_S
from tests.unit.metering.metering_bench import RECOVERY_S, Bench, Does, add, old_batch, running

pytestmark = pytest.mark.virtual_time


class TestSpilled:
    async def test_it_is_taken_up_before_what_is_new_and_waits_for_the_store_as_well(self) -> None:
        bench = Bench(Does.TAKE, Does.REFUSE, Does.TAKE_AND_FAIL)
        bench.spill.kept = [old_batch(number) for number in range(3)]
        async with running(bench.metering()) as metering:
            add(metering, range(3, 5))
            await asyncio.sleep(PERIOD_S + 0.1)
            assert [batch.id for batch in bench.spill.kept] == ["old1", "old2"]
            await asyncio.sleep(RECOVERY_S)
        assert (bench.store.counted, bench.spill.kept) == (list(range(5)), [])

    async def test_one_that_an_earlier_process_had_got_through_does_not_count_again(self) -> None:
        bench = Bench()
        batch = old_batch(0)
        await bench.store.add(batch)
        bench.spill.kept = [batch]
        async with running(bench.metering()):
            await asyncio.sleep(1.0)
        assert (bench.store.counted, bench.spill.kept) == ([0], [])
