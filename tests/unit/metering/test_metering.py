from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from control_plane.core.infer_call import Frontend, Outcome
from control_plane.metering.domain.usage import COUNTED_AS, Usage, UsageEvent, UsageKey
from control_plane.metering.metering import ADD_TIMEOUT_S, BATCH_SUMS, PERIOD_S
from tests.unit.metering.metering_bench import DAY, MIDNIGHT_S, NEXT_DAY, RECOVERY_S, Bench, Does, FakeLog, add, running

pytestmark = pytest.mark.virtual_time

SOURCE = "control_plane.metering.metering"


class TestAdding:
    @pytest.mark.parametrize("outcome", Outcome)
    def test_a_request_counts_by_how_it_ended(self, outcome: Outcome) -> None:
        bench = Bench(today_s=lambda: MIDNIGHT_S)
        metering = bench.metering()
        metering.add("a", "m", outcome, 2, 3, 0.5, False)
        expected = Usage(rows=2, elements=3, compute_units=0.5) + Usage(**{COUNTED_AS[outcome]: 1})
        assert bench.stored(metering) == {UsageKey(NEXT_DAY, "a", "m"): expected}

    def test_a_cache_hit_is_a_request_too(self) -> None:
        bench = Bench()
        metering = bench.metering()
        metering.add("a", "m", Outcome.ANSWERED, 2, 3, 0.0, True)
        metering.add("a", "m", Outcome.ANSWERED, 2, 3, 0.5, False)
        assert list(bench.stored(metering).values()) == [Usage(requests=2, rows=4, elements=6, compute_units=0.5, cache_hits=1)]

    def test_sums_are_by_tenant_and_model_and_leave_together(self) -> None:
        bench = Bench()
        metering = bench.metering()
        for tenant, model in ("am", "bm", "an", "am"):
            metering.add(tenant, model, Outcome.ANSWERED, 1, 1, 1.0, False)
        assert metering.waiting == 3
        found = {(key.tenant, key.model): usage.requests for key, usage in bench.stored(metering).items()}
        assert found == {("a", "m"): 2, ("b", "m"): 1, ("a", "n"): 1}
        assert bench.store.asked == 1

    def test_tokens_are_added_to_what_is_counted(self) -> None:
        bench = Bench()
        metering = bench.metering()
        metering.add_tokens("a", "m", 7, 3)
        metering.add("a", "m", Outcome.ANSWERED, 1, 0, 0.0, False)
        metering.add_tokens("a", "m", 2**40, 1)
        assert list(bench.stored(metering).values()) == [Usage(requests=1, rows=1, input_tokens=7 + 2**32, output_tokens=4)]

    def test_units_that_are_known_later_are_added_to_what_was_counted(self) -> None:
        bench = Bench()
        metering = bench.metering()
        add(metering, [1])
        metering.add_units("t", "1", 2.5)
        metering.add_units("t", "2", 4.0)
        found = {key.model: (usage.requests, usage.compute_units) for key, usage in bench.stored(metering).items()}
        assert found == {"1": (1, 3.5), "2": (0, 4.0)}

    def test_units_by_tenant_are_told_for_the_metrics_whether_or_not_they_are_stored(self) -> None:
        bench = Bench()
        metering = bench.metering()
        metering.add("a", "m", Outcome.ANSWERED, 1, 1, 0.5, False)
        metering.add("a", "n", Outcome.ANSWERED, 1, 1, 1.0, False)
        metering.add_units("b", "m", 4.0)
        metering.add("idle", "m", Outcome.REFUSED, 1, 1, 0.0, False)
        assert metering.units == {"a": 1.5, "b": 4.0}
        bench.stored(metering)
        assert metering.units == {"a": 1.5, "b": 4.0}

    def test_units_of_jobs_are_told_too_and_stored_with_the_jobs(self) -> None:
        bench = Bench()
        metering = bench.metering()
        metering.note_units("a", 2.0)
        assert (metering.units, metering.waiting) == ({"a": 2.0}, 0)

    def test_requests_land_on_their_days_also_when_they_leave_together(self) -> None:
        now_s = MIDNIGHT_S - 0.001
        bench = Bench(today_s=lambda: now_s)
        metering = bench.metering()
        add(metering, [1, 1])
        now_s = MIDNIGHT_S
        add(metering, [1])
        now_s = MIDNIGHT_S - 0.5  # the clock was set back
        add(metering, [1])
        now_s = MIDNIGHT_S + 86_399.999
        add(metering, [1])
        assert {key.day: usage.requests for key, usage in bench.stored(metering).items()} == {DAY: 3, NEXT_DAY: 2}
        assert bench.store.asked == 1

    def test_what_no_store_can_hold_is_made_to_fit(self) -> None:
        bench = Bench()
        metering = bench.metering()
        for tenant in ("a\ud800", "a\udfff", "a?"):
            metering.add(tenant, "m", Outcome.ANSWERED, 2**70, 2**64, 1.0, False)
        ((key, usage),) = bench.stored(metering).items()
        assert (key.tenant, usage.requests, usage.rows, usage.elements) == ("a?", 3, 3 * 2**32, 3 * 2**32)

    def test_a_log_is_told_what_it_is_given_and_asked_for_before(self) -> None:
        log, bench = FakeLog(), Bench()
        event = UsageEvent(0.0, "t", "k", "m", "m", Frontend.HTTP, Outcome.ANSWERED, 0.01, rows=1, elements=1, compute_units=1.0)
        metering = bench.metering(log)
        metering.log(event)
        assert (metering.has_log, log.events, metering.waiting) == (True, [event], 0)
        without = bench.metering()
        without.log(event)
        assert (without.has_log, log.events) == (False, [event])

    def test_logs_come_and_go_while_it_runs_and_requests_are_numbered(self) -> None:
        own, watching, bench = FakeLog(), FakeLog(), Bench()
        metering = bench.metering()
        metering.add_log(own)
        metering.add_log(watching)
        events = [UsageEvent(0.0, "t", "k", "m", "m", Frontend.HTTP, Outcome.ANSWERED, 0.01, 1, 1, 1.0) for _ in range(3)]
        metering.log(events[0])
        metering.remove_log(watching)
        metering.remove_log(watching)
        metering.log(events[1])
        metering.remove_log(own)
        assert not metering.has_log
        assert (own.events, watching.events) == (events[:2], events[:1])
        assert [event.number for event in events[:2]] == [1, 2]


class TestSending:
    async def test_sums_are_sent_within_a_second_in_order_and_in_batches(self) -> None:
        bench = Bench()
        async with running(bench.metering()) as metering:
            add(metering, range(2 * BATCH_SUMS + 1))
            assert (metering.waiting, bench.store.asked) == (2 * BATCH_SUMS + 1, 0)
            await asyncio.sleep(1.0)
            assert (bench.store.counted, bench.store.asked) == (list(range(2 * BATCH_SUMS + 1)), 3)
            assert (metering.waiting, metering.dropped) == (0, 0)

    async def test_the_store_is_asked_twice_a_second_however_many_requests_come(self) -> None:
        bench = Bench()
        bench.store.takes_s = 0.05  # while more requests come
        async with running(bench.metering()) as metering:
            for _ in range(1000):
                add(metering, [1, 2])
                await asyncio.sleep(0.01)
        assert 5 < bench.store.asked <= 10.0 / PERIOD_S

    async def test_with_nothing_to_send_the_store_is_left_alone(self) -> None:
        bench = Bench()
        async with running(bench.metering()):
            await asyncio.sleep(100.0)
        assert (bench.store.asked, bench.spill.looked) == (0, 1)

    async def test_while_the_store_is_slow_adding_goes_on(self) -> None:
        bench = Bench(Does.TAKE_LATE)
        async with running(bench.metering()) as metering:
            add(metering, range(5))
            await asyncio.sleep(1.0)
            add(metering, range(5, 9))
            assert (metering.waiting, bench.store.counted) == (9, [])
            await asyncio.sleep(5.0)
            assert (metering.waiting, bench.store.counted) == (0, list(range(9)))

    async def test_while_too_many_sums_wait_requests_of_further_ones_are_dropped_and_counted(self) -> None:
        bench = Bench(Does.HANG, max_sums=10)
        async with running(bench.metering()) as metering:
            add(metering, [*range(13), 12, 0, 9])
            assert (metering.waiting, metering.dropped) == (10, 4)
            await asyncio.sleep(1.0)  # what is being sent makes room
            add(metering, [*range(5, 16), 5])
            assert (metering.waiting, metering.dropped) == (20, 5)
            await asyncio.sleep(ADD_TIMEOUT_S + RECOVERY_S)
            assert Counter(bench.store.counted) == Counter([*range(10), 0, 9, *range(5, 15), 5])

    async def test_a_store_that_is_away_for_hours_costs_neither_memory_nor_requests(self) -> None:
        loop = asyncio.get_running_loop()
        bench = Bench(today_s=lambda: MIDNIGHT_S - 3600.0 + loop.time(), max_sums=6)
        bench.store.is_away = True
        async with running(bench.metering()) as metering:
            for _ in range(7200):
                add(metering, range(3))
                await asyncio.sleep(1.0)
            assert metering.waiting == 9  # those of the first batch, and of two days
            bench.store.is_away = False
            await asyncio.sleep(RECOVERY_S)
        days = {(key.day, key.model): usage.requests for key, usage in bench.store.usage.sums.items()}
        assert days == {(day, model): 3600 for day in (DAY, NEXT_DAY) for model in "012"}
        assert metering.dropped == 0

    @pytest.mark.parametrize("does", [Does.REFUSE, Does.TAKE_AND_FAIL, Does.BREAK, Does.HANG, Does.TAKE_AND_HANG])
    async def test_what_fails_is_sent_again_and_counts_once(self, does: Does) -> None:
        bench = Bench(does, does)
        async with running(bench.metering()) as metering:
            add(metering, range(3))
            hangs_s = ADD_TIMEOUT_S if does in (Does.HANG, Does.TAKE_AND_HANG) else 0.0
            await asyncio.sleep(PERIOD_S + hangs_s + 0.1)
            assert metering.waiting == 3
            add(metering, range(3, 5))
            await asyncio.sleep(hangs_s + RECOVERY_S)
            assert (bench.store.counted, metering.waiting) == (list(range(5)), 0)

    @pytest.mark.parametrize(
        ("does", "why"), [(Does.REFUSE, "its store is away"), (Does.FILL, "its disk is full"), (Does.BREAK, "its store")]
    )
    async def test_why_usage_is_not_stored_is_told_while_it_is_not(self, does: Does, why: str) -> None:
        bench = Bench(does, does)
        async with running(bench.metering()) as metering:
            assert metering.trouble == ""
            add(metering, range(3))
            await asyncio.sleep(PERIOD_S + 0.1)
            assert metering.trouble.startswith(f"usage cannot be stored, and waits in memory: {why}")
            await asyncio.sleep(RECOVERY_S)
            assert (metering.trouble, bench.store.counted) == ("", list(range(3)))

    async def test_a_store_that_is_away_for_long_is_asked_seldom_and_told_of_twice(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench(*[Does.REFUSE] * 100)
        with caplog.at_level(logging.INFO, SOURCE):
            async with running(bench.metering()) as metering:
                add(metering, range(3))
                await asyncio.sleep(600.0)
                assert 50 < bench.store.asked < 70
                await asyncio.sleep(600.0)
                assert bench.store.counted == list(range(3))
        told = [entry.getMessage() for entry in caplog.records]
        assert told == ["the usage store is away, usage waits in memory: refused", "the usage store accepts usage again"]
