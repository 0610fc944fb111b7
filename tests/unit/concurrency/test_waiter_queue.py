"""The race between a grant and a task that leaves: whatever comes in one turn of the loop, nothing is lost or
granted twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.concurrency.waiter_queue import WaiterQueue
from tests.aio import hold_up, settle

pytestmark = pytest.mark.virtual_time


class Store:
    """A shared resource whose items are granted by hand; it knows what tasks have and what came back."""

    def __init__(self) -> None:
        self.returned: list[str] = []
        self.held: list[str] = []
        self.queue: WaiterQueue[str] = WaiterQueue(self.returned.append)

    async def take(self, item: str, seconds: float = 1000.0) -> None:
        await self.queue.wait(item, asyncio.get_running_loop().time() + seconds)
        self.held.append(item)

    def waiting(self, tasks: asyncio.TaskGroup, *items: str, seconds: float = 1000.0) -> list[asyncio.Task[None]]:
        return [tasks.create_task(self.take(item, seconds)) for item in items]


async def test_first_come_first_served() -> None:
    store = Store()
    async with asyncio.TaskGroup() as tasks:
        store.waiting(tasks, "a", "b", "c")
        await settle()
        while store.queue:
            assert store.queue.first == "abc"[3 - len(store.queue)]
            assert store.queue.grant_first()
        await settle()
        assert store.held == ["a", "b", "c"]


async def test_a_deadline_ends_the_wait_and_leaves_the_others_their_places() -> None:
    store = Store()
    async with asyncio.TaskGroup() as tasks:
        with pytest.raises(TimeoutError):
            await store.take("late", 5.0)
        assert asyncio.get_running_loop().time() == pytest.approx(5.0, abs=0.1)
        store.waiting(tasks, "a")
        await settle()
        assert (len(store.queue), store.queue.first) == (1, "a")
        store.queue.grant_first()
    assert (store.held, store.returned) == (["a"], [])


def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()


def _late(task: asyncio.Task[None]) -> None:
    hold_up(2000.0)  # its deadline passes before it can run


@pytest.mark.parametrize("is_granted_first", [True, False], ids=["granted first", "leaves first"])
@pytest.mark.parametrize("leave", [_cancelled, _late])
async def test_a_grant_in_the_turn_in_which_the_task_leaves(leave: Callable[[asyncio.Task[None]], None], is_granted_first: bool) -> None:
    store = Store()
    loop = asyncio.get_running_loop()
    task = loop.create_task(store.take("a"))
    await settle()
    if is_granted_first:
        assert store.queue.grant_first()
    leave(task)
    is_granted = is_granted_first or store.queue.grant_first()
    await asyncio.wait([task])
    assert store.held + store.returned == ["a"] * is_granted
    assert not store.queue


@given(events=st.lists(st.tuples(st.sampled_from(["come", "grant", "leave", "time"]), st.integers(0, 9), st.booleans()), max_size=50))
async def test_however_they_come_and_go_each_grant_is_held_or_given_back(events: list[tuple[str, int, bool]]) -> None:
    store, granted, came = Store(), list[str](), list[asyncio.Task[None]]()
    for event, number, settles in events:
        if event == "come":
            came.append(asyncio.get_running_loop().create_task(store.take(f"{len(came)}", 2.5)))
        elif event == "grant" and store.queue:
            item = store.queue.first
            granted += [item] * store.queue.grant_first()
        elif event == "leave" and came:
            came[number % len(came)].cancel()
        elif event == "time":
            await asyncio.sleep(1.0)
        if settles:
            await settle()
            assert sorted(store.held + store.returned) == sorted(granted)
    for task in came:
        task.cancel()
    await asyncio.gather(*came, return_exceptions=True)
    assert sorted(store.held + store.returned) == sorted(granted)
    assert not store.queue


class Compared:
    """An item that counts how often it is compared with others."""

    def __init__(self) -> None:
        self.comparisons = 0

    def __eq__(self, other: object) -> bool:
        self.comparisons += 1
        return self is other

    __hash__ = object.__hash__


async def test_who_leaves_is_not_looked_for_among_those_that_wait() -> None:
    queue: WaiterQueue[Compared] = WaiterQueue(lambda _: None)
    items = [Compared() for _ in range(100)]
    loop = asyncio.get_running_loop()
    came = [loop.create_task(queue.wait(item, loop.time() + 1000.0)) for item in items]
    await settle()
    for task in reversed(came):
        task.cancel()
    await asyncio.wait(came)
    assert (len(queue), sum(item.comparisons for item in items)) == (0, 0)
