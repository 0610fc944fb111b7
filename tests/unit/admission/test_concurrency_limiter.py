from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.admission.concurrency_limiter import ConcurrencyLimiter, SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from control_plane.telemetry.shed_reason import ShedReason
from tests.aio import hold_up, settle
from tests.unit.admission.concurrency_limiter_bench import Bench, Task, give, release, ticket

pytestmark = pytest.mark.virtual_time


class TestTurns:
    def test_there_are_as_many_slots_as_were_asked_for(self) -> None:
        slots = ConcurrencyLimiter(SlotLimits(3, 3), QueueLimits(), lambda: 0.0)
        assert [slots.try_acquire("a") for _ in range(4)] == [True, True, True, False]
        give(slots)
        assert slots.try_acquire("a")

    async def test_a_slot_given_back_goes_to_the_next_tenant_by_turns(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks)
            for tenant in ("a", "a", "a", "b"):
                await bench.waiting(tenant)
            for _ in range(4):
                bench.give()
                assert not bench.slots.try_acquire("a")  # it is promised to who waits
                await settle()
            assert bench.order == ["a", "b", "a", "a"]
            timers = [timer for timer in bench.loop._scheduled if timer.when() <= 1000.0]  # type: ignore[attr-defined]
            assert all(timer.cancelled() for timer in timers)
            bench.give()
            assert bench.free() == 1
            assert not bench.slots.are_idle
            bench.give()
            assert bench.slots.are_idle


class TestDeadlines:
    async def test_one_that_passes_while_it_waits_ends_it_then(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks)
            task = await bench.waiting("a", seconds=5.0)
            assert await task is ShedReason.DEADLINE
            assert bench.loop.time() == pytest.approx(5.0, abs=0.1)
            assert bench.slots.waiting == 0
            bench.give()
            assert bench.free() == 1

    async def test_one_that_cannot_be_met_is_refused_at_once(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks)
            await bench.knows(held_s=10.0)
            await bench.waiting("a")
            asked_s = bench.loop.time()
            assert await bench.slots.acquire(ticket(), bench.in_(29.0)) is ShedReason.DEADLINE  # one before it, its own slot, itself
            assert bench.loop.time() == asked_s
            assert not (await bench.waiting("a", seconds=37.0)).done()
            bench.give(held_s=10.0)
            bench.give(held_s=10.0)

    async def test_one_that_cannot_be_met_any_more_when_its_turn_comes_is_not_sent(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks)
            await bench.knows(held_s=8.0)
            hopeless, staying = await bench.waiting("a", seconds=20.0), await bench.waiting("a")
            await asyncio.sleep(13.0)
            given_s = bench.loop.time()
            bench.give(held_s=8.0)
            assert await hopeless is ShedReason.DEADLINE
            assert await staying is None
            assert bench.loop.time() == given_s

    async def test_behind_one_that_held_all_up_each_is_sent_whatever_it_took(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks, 2)
            waiting = [await bench.waiting("a", seconds=5.0), await bench.waiting("a", seconds=4.0)]
            bench.give(held_s=10.0)
            bench.give(held_s=10.0)
            assert [await task for task in waiting] == [None, None]

    async def test_a_free_slot_is_not_taken_in_danger_if_the_answer_would_come_too_late(self) -> None:
        now_s = 0.0
        slots = ConcurrencyLimiter(SlotLimits(9, 9), QueueLimits(), lambda: now_s)
        assert slots.try_acquire("a", deadline_s=15.0)
        release(slots, "a", held_s=10.0, allowed_s=30.0)
        now_s = 3.0  # when it is believed
        assert [slots.try_acquire("a", deadline_s=5.0) for _ in range(2)] == [True, True]  # nothing has been in danger
        release(slots, "a", held_s=20.0, ahead=1.0, allowed_s=30.0)
        assert not slots.try_acquire("a", deadline_s=5.0)
        assert slots.try_acquire("a", deadline_s=50.0)
        now_s = 14.0
        assert slots.try_acquire("a", deadline_s=19.0)  # the danger has passed

    @pytest.mark.parametrize(
        ("allowed_s", "holds_others_back"),
        [pytest.param(0.02, True, id="an idle model could meet it"), pytest.param(0.001, False, id="no model could")],
    )
    async def test_what_triton_gets_shrinks_for_a_short_deadline_that_can_be_met(self, allowed_s: float, holds_others_back: bool) -> None:
        """In danger Triton gets work for a tenth of a second, or for a few times what a request takes alone."""
        loop = asyncio.get_running_loop()
        slots = ConcurrencyLimiter(SlotLimits(64, 64), QueueLimits(), loop.time)

        def sent() -> int:
            count = 0
            while slots.try_acquire("patient", deadline_s=loop.time() + 10.0):
                count += 1
            for _ in range(count):
                release(slots, "patient", held_s=0.0)
            return count

        for ahead in (0.0, *[9.0] * 50):  # 10 ms each, one after the other
            assert slots.try_acquire("patient")
            release(slots, "patient", held_s=0.01 * (ahead + 1.0), ahead=ahead, allowed_s=0.15)
            await asyncio.sleep(0.01)
        before = sent()
        assert 10 <= before <= 15
        for _ in range(64):
            slots.try_acquire("patient")
        await slots.acquire(ticket("hasty"), loop.time() + allowed_s)
        for _ in range(slots._held["patient"]):
            release(slots, "patient", held_s=0.0)
        assert (sent() < before / 2) is holds_others_back

    async def test_an_idle_model_is_tried_whatever_it_took_before(self) -> None:
        now_s = 0.0
        slots = ConcurrencyLimiter(SlotLimits(9, 9), QueueLimits(), lambda: now_s)
        assert slots.try_acquire("a")
        release(slots, "a", held_s=10.0, allowed_s=1.0)
        now_s = 3.0  # when it is believed
        assert [slots.try_acquire("a", deadline_s=4.0) for _ in range(2)] == [True, False]

    async def test_without_measurements_none_is_refused_for_it(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks)
            waiting = [await bench.waiting("a", seconds=0.001, cost=1e9) for _ in range(20)]
            assert not any(task.done() for task in waiting)
            assert {await task for task in waiting} == {ShedReason.DEADLINE}

    @pytest.mark.parametrize(
        ("held_s", "told_s"),
        [
            pytest.param(None, 1.0, id="not known"),
            pytest.param(0.01, 1.0, id="soon"),
            pytest.param(2.5, 10.0, id="when those that wait are done"),
            pytest.param(100.0, 60.0, id="not beyond a minute"),
        ],
    )
    async def test_when_to_come_back(self, held_s: float | None, told_s: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks)
            if held_s is not None:
                bench.give(held_s)
                assert bench.free() == 1
            waiting = [await bench.waiting("a") for _ in range(4)]
            assert bench.slots.retry_after_s == pytest.approx(told_s)
            for task in waiting:
                task.cancel()

    async def test_when_to_come_back_where_callers_choose_how_long_they_take(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks, count=2)
            waiting = [await bench.waiting("a") for _ in range(5)]
            await asyncio.sleep(20.0)
            assert bench.slots.retry_after_s == pytest.approx(20.0), "for so long none has come free"
            for _ in range(2):
                bench.give()
                await asyncio.sleep(6.0)
            expected_s = (3 + 1) * (20.0 + 0.1 * (6.0 - 20.0))
            assert bench.slots.retry_after_s == pytest.approx(min(expected_s, 60.0))
            for _ in range(3):
                bench.give()
                await asyncio.sleep(6.0)
            assert bench.slots.retry_after_s == pytest.approx(15.0, abs=1.0), "the next one that comes free"
            for task in waiting:
                task.cancel()


async def test_a_full_queue_refuses_the_newest_of_the_longest_and_lets_another_in() -> None:
    async with asyncio.TaskGroup() as tasks:
        bench = Bench(tasks, room=3)
        flood = [await bench.waiting("a") for _ in range(3)]
        light = await bench.waiting("b")
        assert await flood[2] is ShedReason.QUEUE_FULL
        assert await (await bench.waiting("a")) is ShedReason.QUEUE_FULL
        for _ in range(3):
            bench.give()
        await settle()
        assert bench.order == ["a", "b", "a"]
        assert light.done()


def _slot_comes(bench: Bench, _: Task) -> None:
    bench.give()


def _deadline_passes(bench: Bench, _: Task) -> None:
    hold_up(2000.0)


class TestLeaving:
    """A waiter is cancelled, before or after something else has ended its wait but it has not gone on yet."""

    async def test_while_it_waits(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks)
            leaving = await bench.waiting("a")
            await bench.waiting("b")
            leaving.cancel()
            await settle()
            assert leaving.cancelled()
            assert bench.slots.waiting == 1
            bench.give()
            await settle()
            assert bench.order == ["b"]

    async def test_as_its_slot_comes(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks)
            leaving, staying = await bench.waiting("a"), await bench.waiting("b")
            bench.give()
            leaving.cancel()
            await settle()
            assert leaving.cancelled()
            assert await staying is None
            assert bench.order == ["b"]

    async def test_just_before_its_slot_would_come(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks)
            leaving, staying = await bench.waiting("a"), await bench.waiting("b")
            leaving.cancel()
            bench.give()
            assert await staying is None
            assert bench.slots.waiting == 0

    @pytest.mark.parametrize("is_first", [True, False], ids=["cancelled first", "cancelled last"])
    @pytest.mark.parametrize("event", [_slot_comes, _deadline_passes])
    async def test_together_with_whatever_else_ends_the_wait(self, event: Callable[[Bench, Task], None], is_first: bool) -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks)
            leaving = await bench.waiting("a")
            if is_first:
                leaving.cancel()
            event(bench, leaving)
            if not is_first:
                leaving.cancel()
            await settle()
            assert leaving.cancelled()
            assert bench.slots.waiting == 0
            if event is not _slot_comes:
                bench.give()
            assert bench.free() == 1

    @pytest.mark.parametrize("is_first", [True, False], ids=["cancelled first", "cancelled last"])
    async def test_as_it_is_refused_for_another(self, is_first: bool) -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks, room=2)
            await bench.waiting("a")
            leaving = await bench.waiting("a")
            light = tasks.create_task(bench.slots.acquire(ticket("light"), bench.in_(1000.0)))
            if is_first:
                leaving.cancel()
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(0)
                leaving.cancel()
            await settle()
            assert leaving.done()
            assert bench.slots.waiting == 2
            bench.give()
            bench.give()
            assert await light is None
            bench.give()
            assert bench.free() == 1


events = st.lists(st.tuples(st.sampled_from(["come", "give", "leave", "time"]), st.sampled_from("abc"), st.booleans()), max_size=60)


@given(count=st.integers(1, 4), room=st.integers(1, 6), events=events)
@settings(max_examples=150)
async def test_however_they_come_and_go_no_slot_is_idle_lost_or_held_twice(
    count: int, room: int, events: list[tuple[str, str, bool]]
) -> None:
    held, came = 0, list[asyncio.Task[None]]()
    loop = asyncio.get_running_loop()
    slots = ConcurrencyLimiter(SlotLimits(count, count), QueueLimits(room, room), loop.time)

    async def come(tenant: str) -> None:
        nonlocal held
        if slots.try_acquire("a") or await slots.acquire(ticket(tenant), loop.time() + 2.5) is None:
            held += 1

    async with asyncio.TaskGroup() as tasks:
        for event, tenant, settles in events:
            if event == "come":
                came.append(tasks.create_task(come(tenant)))
            elif event == "give" and held:
                held -= 1
                give(slots)
            elif event == "leave" and came:
                came.pop(len(tenant) % len(came)).cancel()
            elif event == "time":
                await asyncio.sleep(1.0)
            if settles:
                await settle()
                assert held == slots._taken <= count
                assert slots.waiting <= room
                assert held == count or not slots.waiting
        for task in came:
            task.cancel()
    assert slots.waiting == 0
    for _ in range(held):
        give(slots)
    assert slots.are_idle
    assert sum(slots.try_acquire("a") for _ in range(count + 1)) == count


@given(count=st.integers(1, 4), events=events)
@settings(max_examples=100)
async def test_no_slot_is_lost_where_some_pass_the_queue_and_the_limit_changes(count: int, events: list[tuple[str, str, bool]]) -> None:
    loop, holders = asyncio.get_running_loop(), list[str]()
    slots = ConcurrencyLimiter(SlotLimits(alone=9, shared=count), QueueLimits(), loop.time)

    async def come(tenant: str) -> None:
        if slots.try_acquire(tenant) or await slots.acquire(ticket(tenant), loop.time() + 2.5) is None:
            holders.append(tenant)

    async with asyncio.TaskGroup() as tasks:
        for event, tenant, settles in events:
            if event == "come":
                tasks.create_task(come(tenant))
            elif event == "give" and holders:
                release(slots, holders.pop(0), held_s=0.1)
            elif event == "time":
                await asyncio.sleep(1.0)
            if settles:
                await settle()
                assert len(holders) == slots._taken <= 9
                assert Counter(holders) == slots._held
    while holders:
        release(slots, holders.pop(), held_s=0.1)
    assert slots.are_idle
    assert not slots._held
