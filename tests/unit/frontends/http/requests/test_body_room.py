"""Room in the budget that a connection holds, waits for and hands over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from control_plane.core.errors import Overloaded
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.http.requests.body_room import BodyRoom
from tests.aio import settle

TOTAL = 100


@dataclass
class Bench:
    room: BodyRoom
    budget: BodyBudget
    told: list[str] = field(default_factory=list)


@asynccontextmanager
async def bench(*, patience_s: float = 60.0) -> AsyncIterator[Bench]:
    told: list[str] = []
    budget = BodyBudget(TOTAL)
    async with asyncio.TaskGroup() as tasks:
        room = BodyRoom(
            budget,
            tasks,
            patience_s=patience_s,
            granted=lambda: told.append("granted"),
            refused=lambda error: told.append(type(error).__name__),
        )
        yield Bench(room, budget, told)
        room.release(room.hand_over())


async def test_room_that_is_free_is_taken_at_once() -> None:
    async with bench() as it:
        it.room.reserve(TOTAL)
        assert it.room.waiting is None
        assert not it.budget.try_acquire(1)
        it.room.release(it.room.hand_over())
        assert it.budget.try_acquire(TOTAL)


async def test_what_is_handed_over_is_no_longer_held() -> None:
    async with bench() as it:
        it.room.reserve(TOTAL)
        assert (it.room.hand_over(), it.room.hand_over()) == (TOTAL, 0)
        it.budget.release(TOTAL)


async def test_a_wait_takes_all_that_is_owed_meanwhile() -> None:
    async with bench() as it:
        assert it.budget.try_acquire(TOTAL)
        it.room.reserve(30)
        it.room.reserve(40)
        await settle()
        assert (it.room.waiting is None, it.told) == (False, [])
        it.budget.release(TOTAL)
        await settle()
        assert (it.room.waiting, it.told, it.room.hand_over()) == (None, ["granted"], 70)
        it.budget.release(70)


async def test_who_hands_over_waits_no_longer() -> None:
    async with bench() as it:
        assert it.budget.try_acquire(TOTAL)
        it.room.reserve(30)
        await settle()
        assert it.room.hand_over() == 0
        await settle()
        it.budget.release(TOTAL)
        await settle()
        assert it.told == []
        assert it.budget.try_acquire(TOTAL)  # nothing was taken by the wait that was called off


async def test_a_wait_ends_with_a_refusal() -> None:
    async with bench(patience_s=0.0) as it:
        assert it.budget.try_acquire(TOTAL)
        it.room.reserve(30)
        waiting = it.room.waiting
        assert waiting is not None
        await asyncio.wait((waiting,))
        assert (it.room.waiting, it.told) == (None, [Overloaded.__name__])
