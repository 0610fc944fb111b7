"""Usage under any script of outages, bursts, ends and cancellations: each request counts once on its day, or as dropped."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.metering.domain.usage import Usage, UsageKey, day_of
from control_plane.metering.metering import Metering
from tests.unit.metering.metering_bench import MIDNIGHT_S, RECOVERY_S, Bench, Does, add

pytestmark = pytest.mark.virtual_time


class Ledger:
    """Metering with a record of what was added, by the store's keys; its clock is the loop's, near midnight."""

    def __init__(self) -> None:
        self.added: Counter[UsageKey] = Counter()

    def today_s(self) -> float:
        return MIDNIGHT_S - 60.0 + asyncio.get_running_loop().time()

    def add(self, metering: Metering, requests: int, models: int) -> None:
        add(metering, (number % models for number in range(requests)))
        self.added.update(UsageKey(day_of(self.today_s()), "t", str(number % models)) for number in range(requests))


async def _live(metering: Metering, bursts: list[tuple[float, int, int]], ledger: Ledger, stop_after_s: float) -> None:
    """Add bursts after pauses while metering runs, and end it at any moment."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(metering.run())
        asyncio.get_running_loop().call_later(stop_after_s, task.cancel)
        for pause_s, requests, models in bursts:
            await asyncio.sleep(pause_s)
            ledger.add(metering, requests, models)


_BURSTS = st.lists(st.tuples(st.floats(0, 40), st.sampled_from([1, 3, 300, 700]), st.sampled_from([1, 2, 500])), max_size=4)


@given(
    script=st.lists(st.sampled_from(Does), max_size=10),
    max_sums=st.sampled_from([1, 250, 600, 100_000]),
    lives=st.lists(
        st.tuples(_BURSTS, st.floats(0, 120), st.sampled_from([0.0, 1.0, 5.0, 100.0]), st.none() | st.floats(0, 10)), min_size=1, max_size=3
    ),
)
async def test_whatever_the_store_does_each_request_counts_once_on_its_day_or_as_dropped(
    script: list[Does], max_sums: int, lives: list[tuple[list[tuple[float, int, int]], float, float, float | None]]
) -> None:
    ledger = Ledger()
    bench = Bench(*script, max_sums=max_sums, today_s=ledger.today_s)
    dropped = 0
    for bursts, stop_after_s, close_timeout_s, cancel_after_s in lives:
        metering = bench.metering()
        await _live(metering, bursts, ledger, stop_after_s)
        await _close(metering, close_timeout_s, cancel_after_s)
        dropped += metering.dropped
    bench.store.script.clear()
    await _live(bench.metering(), [], ledger, RECOVERY_S)
    counted = Counter({key: usage.requests for key, usage in bench.store.usage.sums.items()})
    assert counted <= ledger.added
    assert counted.total() + dropped == ledger.added.total()
    assert all(
        usage == Usage(usage.requests, rows=usage.requests, elements=usage.requests, compute_units=usage.requests)
        for usage in bench.store.usage.sums.values()
    )
    assert not bench.spill.kept
    if max_sums >= 1000:  # more than there are, of two days
        assert dropped == 0


async def _close(metering: Metering, timeout_s: float, cancel_after_s: float | None) -> None:
    """Close within the timeout, or cancel the close before that, where given."""
    began_s = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as tasks:
        closing = tasks.create_task(metering.close(timeout_s))
        if cancel_after_s is not None:
            asyncio.get_running_loop().call_later(cancel_after_s, closing.cancel)
        with suppress(asyncio.CancelledError):
            await closing
    assert asyncio.get_running_loop().time() - began_s <= timeout_s + 0.001
    assert metering.waiting == 0
