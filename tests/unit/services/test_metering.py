from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.domain.errors import StoreUnavailable
from control_plane.domain.inference import Door, Outcome
from control_plane.domain.usage import UsageBatch, UsageEvent
from control_plane.services.metering import ADD_TIMEOUT_S, BATCH_EVENTS, PERIOD_S, Metering
from tests.aio import run_in_virtual_time, settle
from tests.fakes.usage_store import FakeUsageStore

SOURCE = "control_plane.services.metering"
RECOVERY_S = 60.0
"""More than the longest pause between two attempts."""


def event(number: int) -> UsageEvent:
    return UsageEvent(0.0, "t", "k", "m", "m", Door.HTTP, Outcome.ANSWERED, 0.01, rows=number, elements=1, compute_units=1.0)


def events(start: int, stop: int) -> list[UsageEvent]:
    return [event(number) for number in range(start, stop)]


class Does(Enum):
    """What a store does with a batch."""

    TAKE = auto()
    TAKE_LATE = auto()
    TAKE_AND_ANSWER_LATE = auto()
    REFUSE = auto()
    TAKE_AND_FAIL = auto()
    HANG = auto()
    TAKE_AND_HANG = auto()
    BREAK = auto()
    """As a store with a defect does."""


class ScriptedStore(FakeUsageStore):
    """Does what it is told in turn; then it takes everything."""

    def __init__(self, script: Iterable[Does] = ()) -> None:
        super().__init__()
        self.script = list(script)
        self.asked = 0
        self._seen: dict[str, UsageBatch] = {}

    @property
    def counted(self) -> list[UsageEvent]:
        """Every event as often as it was counted, in order."""
        return [event for batch in self.usage.batches.values() for event in batch.events]

    async def add(self, batch: UsageBatch) -> None:
        self.asked += 1
        does = self.script.pop(0) if self.script else Does.TAKE
        assert 0 < len(batch.events) <= BATCH_EVENTS
        assert self._seen.setdefault(batch.id, batch) == batch, "one id, two batches"
        await asyncio.sleep(3.0 if does is Does.TAKE_LATE else 0)
        if does is Does.BREAK:
            raise RuntimeError("a defect")
        if does is Does.REFUSE:
            raise StoreUnavailable("refused")
        if does is not Does.HANG:
            await super().add(batch)
        if does in (Does.HANG, Does.TAKE_AND_HANG):
            await asyncio.sleep(1e5)
        if does is Does.TAKE_AND_FAIL:
            raise StoreUnavailable("the answer was lost")
        if does is Does.TAKE_AND_ANSWER_LATE:
            await asyncio.sleep(3.0)


class FakeSpill:
    """`ports.UsageSpill` in memory."""

    def __init__(self) -> None:
        self.kept: list[UsageBatch] = []
        self.is_full = False
        self.looked = 0

    def batches(self) -> Iterator[UsageBatch]:
        self.looked += 1
        yield from list(self.kept)

    def write(self, batch: UsageBatch) -> None:
        if self.is_full:
            raise StoreUnavailable("no space left")
        self.kept.append(batch)

    def remove(self, batch: UsageBatch) -> None:
        self.kept.remove(batch)


class FakeLog:
    def __init__(self) -> None:
        self.events: list[UsageEvent] = []

    def write(self, event: UsageEvent) -> None:
        self.events.append(event)


class Bench:
    """What outlives one process, and the ids of all."""

    def __init__(self, *script: Does, queue_size: int = 100_000) -> None:
        self.store, self.spill = ScriptedStore(script), FakeSpill()
        self._queue_size = queue_size
        self._ids = map(str, count())

    def metering(self, log: FakeLog | None = None) -> Metering:
        return Metering(store=self.store, spill=self.spill, queue_size=self._queue_size, log=log, new_id=lambda: next(self._ids))


@asynccontextmanager
async def running(metering: Metering) -> AsyncIterator[Metering]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(metering.run())
        yield metering
        task.cancel()


def record(metering: Metering, recorded: Iterable[UsageEvent]) -> None:
    for each in recorded:
        metering.record(each)


class TestSending:
    def test_events_are_sent_within_a_second_in_order_and_in_batches(self) -> None:
        async def main() -> None:
            bench = Bench()
            async with running(bench.metering()) as metering:
                record(metering, events(0, 2 * BATCH_EVENTS + 1))
                assert (metering.waiting, bench.store.asked) == (2 * BATCH_EVENTS + 1, 0)
                await asyncio.sleep(1.0)
                assert (bench.store.counted, bench.store.asked) == (events(0, 2 * BATCH_EVENTS + 1), 3)
                assert (metering.waiting, metering.dropped, metering.is_behind) == (0, 0, False)

        run_in_virtual_time(main())

    def test_with_nothing_to_send_the_store_is_left_alone(self) -> None:
        async def main() -> None:
            bench = Bench()
            async with running(bench.metering()):
                await asyncio.sleep(100.0)
            assert (bench.store.asked, bench.spill.looked) == (0, 1)

        run_in_virtual_time(main())

    def test_while_the_store_is_slow_recording_goes_on(self) -> None:
        async def main() -> None:
            bench = Bench(Does.TAKE_LATE)
            async with running(bench.metering()) as metering:
                record(metering, events(0, 5))
                await asyncio.sleep(1.0)
                record(metering, events(5, 9))
                assert (metering.waiting, bench.store.counted) == (9, [])
                await asyncio.sleep(5.0)
                assert (metering.waiting, bench.store.counted) == (0, events(0, 9))

        run_in_virtual_time(main())

    def test_overflow_drops_the_newest_and_counts_them(self) -> None:
        async def main() -> None:
            bench = Bench(Does.HANG, queue_size=10)
            async with running(bench.metering()) as metering:
                record(metering, events(0, 13))
                assert (metering.waiting, metering.dropped) == (10, 3)
                await asyncio.sleep(1.0)  # what was taken off the queue makes room
                record(metering, events(13, 24))
                assert (metering.waiting, metering.dropped) == (20, 4)
                await asyncio.sleep(ADD_TIMEOUT_S + RECOVERY_S)
                assert bench.store.counted == events(0, 10) + events(13, 23)

        run_in_virtual_time(main())

    @pytest.mark.parametrize("does", [Does.REFUSE, Does.TAKE_AND_FAIL, Does.BREAK, Does.HANG, Does.TAKE_AND_HANG])
    def test_what_fails_is_sent_again_and_counts_once(self, does: Does) -> None:
        async def main() -> None:
            bench = Bench(does, does)
            async with running(bench.metering()) as metering:
                record(metering, events(0, 3))
                hangs_s = ADD_TIMEOUT_S if does in (Does.HANG, Does.TAKE_AND_HANG) else 0.0
                await asyncio.sleep(PERIOD_S + hangs_s + 0.1)
                assert metering.is_behind
                record(metering, events(3, 5))
                await asyncio.sleep(hangs_s + RECOVERY_S)
                assert (bench.store.counted, metering.is_behind, metering.waiting) == (events(0, 5), False, 0)

        run_in_virtual_time(main())

    def test_a_store_that_is_away_for_long_is_asked_seldom_and_told_of_twice(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            bench = Bench(*[Does.REFUSE] * 100)
            with caplog.at_level(logging.INFO, SOURCE):
                async with running(bench.metering()) as metering:
                    record(metering, events(0, 3))
                    await asyncio.sleep(600.0)
                    assert 50 < bench.store.asked < 70
                    await asyncio.sleep(600.0)
                    assert bench.store.counted == events(0, 3)
            told = [entry.getMessage() for entry in caplog.records]
            assert told == ["the usage store is away, usage waits: refused", "the usage store takes usage again"]

        run_in_virtual_time(main())

    def test_a_request_log_gets_every_event_at_once_dropped_or_not(self) -> None:
        log = FakeLog()
        record(Bench(queue_size=1).metering(log), events(0, 3))
        assert log.events == events(0, 3)


class TestClose:
    def test_sends_what_waits(self) -> None:
        async def main() -> None:
            bench = Bench()
            metering = bench.metering()
            record(metering, events(0, BATCH_EVENTS + 5))
            await metering.close(1.0)
            assert (bench.store.counted, bench.spill.kept) == (events(0, BATCH_EVENTS + 5), [])

        run_in_virtual_time(main())

    @pytest.mark.parametrize("does", [Does.REFUSE, Does.TAKE_AND_FAIL, Does.BREAK, Does.HANG, Does.TAKE_AND_HANG, Does.TAKE_LATE])
    def test_what_the_store_does_not_take_in_time_is_for_the_next_process(self, does: Does) -> None:
        async def main() -> None:
            bench = Bench(does)
            metering = bench.metering()
            record(metering, events(0, BATCH_EVENTS + 5))
            began_s = asyncio.get_running_loop().time()
            await metering.close(2.0)
            assert asyncio.get_running_loop().time() - began_s <= 2.0
            assert [len(batch.events) for batch in bench.spill.kept] == [BATCH_EVENTS, 5]
            assert metering.waiting == 0
            async with running(bench.metering()) as later:
                record(later, events(BATCH_EVENTS + 5, BATCH_EVENTS + 9))
                await asyncio.sleep(1.0)
            assert (bench.store.counted, bench.spill.kept) == (events(0, BATCH_EVENTS + 9), [])

        run_in_virtual_time(main())

    def test_that_is_cancelled_spills_at_once(self) -> None:
        async def main() -> None:
            bench = Bench(Does.HANG)
            metering = bench.metering()
            record(metering, events(0, 3))
            async with asyncio.TaskGroup() as tasks:
                closing = tasks.create_task(metering.close(1000.0))
                await settle()
                assert bench.store.asked == 1
                closing.cancel()
            assert closing.cancelled()
            assert [batch.events for batch in bench.spill.kept] == [tuple(events(0, 3))]

        run_in_virtual_time(main())

    def test_what_cannot_be_spilled_either_counts_as_dropped(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            bench = Bench(Does.REFUSE)
            bench.spill.is_full = True
            metering = bench.metering()
            record(metering, events(0, BATCH_EVENTS + 5))
            await metering.close(1.0)
            assert metering.dropped == BATCH_EVENTS + 5

        run_in_virtual_time(main())
        assert "usage of 5 requests is lost: no space left" in caplog.messages

    def test_what_comes_after_it_counts_as_dropped(self) -> None:
        async def main() -> None:
            metering = Bench().metering()
            await metering.close(1.0)
            record(metering, events(0, 2))
            assert (metering.dropped, metering.waiting) == (2, 0)

        run_in_virtual_time(main())


class TestSpilled:
    def test_it_is_taken_up_before_what_is_new_and_waits_for_the_store_as_well(self) -> None:
        async def main() -> None:
            bench = Bench(Does.TAKE, Does.REFUSE, Does.TAKE_AND_FAIL)
            bench.spill.kept = [UsageBatch(f"old{number}", (event(number),)) for number in range(3)]
            async with running(bench.metering()) as metering:
                record(metering, events(3, 5))
                await asyncio.sleep(PERIOD_S + 0.1)
                assert [batch.id for batch in bench.spill.kept] == ["old1", "old2"]
                await asyncio.sleep(RECOVERY_S)
            assert (bench.store.counted, bench.spill.kept) == (events(0, 5), [])

        run_in_virtual_time(main())

    def test_one_that_an_earlier_process_had_got_through_does_not_count_again(self) -> None:
        async def main() -> None:
            bench = Bench()
            batch = UsageBatch("old", (event(0),))
            await bench.store.add(batch)
            bench.spill.kept = [batch]
            async with running(bench.metering()):
                await asyncio.sleep(1.0)
            assert (bench.store.counted, bench.spill.kept) == ([event(0)], [])

        run_in_virtual_time(main())


async def _live(metering: Metering, bursts: list[tuple[float, int]], numbers: Iterator[int], stop_after_s: float) -> list[UsageEvent]:
    """Record bursts, each after a pause, while it runs, which ends at any moment; returns what was recorded."""
    recorded: list[UsageEvent] = []
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(metering.run())
        asyncio.get_running_loop().call_later(stop_after_s, task.cancel)
        for pause_s, size in bursts:
            await asyncio.sleep(pause_s)
            burst = [event(next(numbers)) for _ in range(size)]
            record(metering, burst)
            recorded += burst
    return recorded


_BURSTS = st.lists(st.tuples(st.floats(0, 40), st.sampled_from([1, 3, 700, 1500])), max_size=4)


@given(
    script=st.lists(st.sampled_from(Does), max_size=10),
    queue_size=st.sampled_from([1, 500, 2000, 100_000]),
    lives=st.lists(
        st.tuples(_BURSTS, st.floats(0, 120), st.sampled_from([0.0, 1.0, 5.0, 100.0]), st.none() | st.floats(0, 10)), min_size=1, max_size=3
    ),
)
def test_whatever_the_store_does_each_event_counts_once_in_order_or_as_dropped(
    script: list[Does], queue_size: int, lives: list[tuple[list[tuple[float, int]], float, float, float | None]]
) -> None:
    async def main() -> None:
        bench, numbers = Bench(*script, queue_size=queue_size), count()
        recorded: list[UsageEvent] = []
        dropped = 0
        for bursts, stop_after_s, close_timeout_s, cancel_after_s in lives:
            metering = bench.metering()
            recorded += await _live(metering, bursts, numbers, stop_after_s)
            await _close(metering, close_timeout_s, cancel_after_s)
            dropped += metering.dropped
        bench.store.script.clear()
        await _live(bench.metering(), [], numbers, RECOVERY_S)
        counted = [each.rows for each in bench.store.counted]
        assert counted == sorted(set(counted))
        assert set(counted) <= {each.rows for each in recorded}
        assert len(counted) + dropped == len(recorded)
        assert sum(usage.requests for usage in bench.store.usage.sums.values()) == len(counted)
        assert not bench.spill.kept
        if queue_size > 6000:  # more than all bursts of a life
            assert dropped == 0

    run_in_virtual_time(main())


async def _close(metering: Metering, timeout_s: float, cancel_after_s: float | None) -> None:
    """Within its time-out, and cancelled before where that is given."""
    began_s = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as tasks:
        closing = tasks.create_task(metering.close(timeout_s))
        if cancel_after_s is not None:
            asyncio.get_running_loop().call_later(cancel_after_s, closing.cancel)
        with suppress(asyncio.CancelledError):
            await closing
    assert asyncio.get_running_loop().time() - began_s <= timeout_s + 0.001
    assert metering.waiting == 0
