from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.triton.adapters.connection_slots import ConnectionSlots
from tests.aio import run


def soon() -> float:
    return asyncio.get_running_loop().time() + 0.005


def later() -> float:
    return asyncio.get_running_loop().time() + 30.0


async def held_by_greedy(slots: ConnectionSlots, lane: str) -> int:
    """Return how many slots a lane gets that wants all of them."""
    held = 0
    while True:
        try:
            await slots.acquire(lane, soon())
        except DeadlineExceeded:
            return held
        held += 1


class TestShares:
    @pytest.mark.parametrize(
        ("count", "lanes", "expected"),
        [
            pytest.param(8, ["a"], [4], id="one takes half"),
            pytest.param(9, ["a", "b"], [5, 2], id="who comes later gets half of what is left"),
            pytest.param(1, ["a"], [1], id="a single slot is not kept for anybody"),
        ],
    )
    async def test_a_lane_gets_no_more_than_it_leaves(self, count: int, lanes: list[str], expected: list[int]) -> None:
        slots = ConnectionSlots(count)
        assert [await held_by_greedy(slots, lane) for lane in lanes] == expected

    async def test_beside_a_lane_that_waits_another_gets_one_at_once(self) -> None:
        slots = ConnectionSlots(4)
        for _ in range(2):
            await slots.acquire("slow", later())
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(slots.acquire("slow", later())) for _ in range(10)]
            await asyncio.sleep(0)
            await asyncio.wait_for(slots.acquire("other", later()), timeout=5)
            for task in waiting:
                task.cancel()

    async def test_those_that_wait_take_turns_by_lane(self) -> None:
        slots, order = ConnectionSlots(1), list[str]()

        async def one(lane: str) -> None:
            await slots.acquire(lane, later())
            order.append(lane)
            slots.release(lane)

        await slots.acquire("first", later())
        async with asyncio.TaskGroup() as tasks:
            for lane in ("a", "a", "a", "b", "b"):
                tasks.create_task(one(lane))
            await asyncio.sleep(0)
            slots.release("first")
        assert order == ["a", "b", "a", "b", "a"]


class TestWaiting:
    async def test_a_deadline_ends_it_and_leaves_nothing_behind(self) -> None:
        slots = ConnectionSlots(1)
        await slots.acquire("a", later())
        with pytest.raises(DeadlineExceeded, match="busy until the request's deadline"):
            await slots.acquire("a", soon())
        slots.release("a")
        await slots.acquire("b", soon())

    async def test_a_slot_that_comes_as_the_waiter_leaves_goes_to_the_next(self) -> None:
        slots = ConnectionSlots(1)
        await slots.acquire("a", later())
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(slots.acquire("a", later()))
            staying = tasks.create_task(slots.acquire("a", later()))
            await asyncio.sleep(0)
            slots.release("a")
            leaving.cancel()
            await asyncio.wait_for(staying, timeout=5)

    async def test_a_closed_pool_fails_all_who_wait(self) -> None:
        slots = ConnectionSlots(1)
        await slots.acquire("a", later())

        async def wait(lane: str) -> None:
            with pytest.raises(UpstreamUnavailable):
                await slots.acquire(lane, later())

        async with asyncio.TaskGroup() as tasks:
            for lane in "aab":
                tasks.create_task(wait(lane))
            await asyncio.sleep(0)
            slots.fail(UpstreamUnavailable("closed"))


@given(
    count=st.integers(1, 6),
    events=st.lists(st.tuples(st.sampled_from(["take", "give", "leave"]), st.sampled_from("abc")), max_size=60),
)
def test_however_they_come_and_go_no_slot_is_lost_or_given_twice(count: int, events: list[tuple[str, str]]) -> None:
    async def main() -> None:
        slots, held, waiting = ConnectionSlots(count), Counter[str](), list[tuple[str, asyncio.Task[None]]]()

        async def take(lane: str) -> None:
            await slots.acquire(lane, later())
            held[lane] += 1

        async with asyncio.TaskGroup() as tasks:
            for event, lane in events:
                if event == "take":
                    waiting.append((lane, tasks.create_task(take(lane))))
                elif event == "give" and held[lane]:
                    held[lane] -= 1
                    slots.release(lane)
                elif event == "leave" and waiting:
                    waiting.pop()[1].cancel()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert held.total() <= count
            for _, task in waiting:
                task.cancel()
        for lane, number in held.items():
            for _ in range(number):
                slots.release(lane)
        assert await held_by_greedy(slots, "a") == (count + 1) // 2

    run(main())
