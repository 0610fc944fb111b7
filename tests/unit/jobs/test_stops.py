"""A stop that comes just as work does: `asyncio.wait_for` of Python 3.11 swallows it, and a loop would go on for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from control_plane.batches.batches import Batches
from control_plane.jobs.adapters.polled_tickets import PolledTickets
from control_plane.jobs.charging import Charger
from control_plane.jobs.domain.transitions import RetryPolicy
from control_plane.jobs.ports import JobBackend
from tests.fakes.jobs import ROOMY

Loop = tuple[Coroutine[Any, Any, Any], Callable[[], Awaitable[None]]]
"""A loop, and what wakes it."""


class Empty:
    """A store of jobs and a shelf of batches with nothing in them."""

    async def ready(self, now_s: float, *, limit: int) -> int:
        return 0

    async def open_batches(self) -> list[Any]:
        return []

    async def remove_older(self, before_s: float, *, unfinished_before_s: float) -> None: ...


def tickets() -> Loop:
    queue = PolledTickets(Empty())  # type: ignore[arg-type]  # as much of a store as it needs
    return queue.take(), queue.publish


def charges() -> Loop:
    nothing: Any = None
    charger, job = Charger(store=nothing, usage=nothing), SimpleNamespace(id="job", charge=None)
    charger.put(job)  # type: ignore[arg-type]  # for one that is not charged, nothing is asked

    async def wake() -> None:
        charger._is_urgent.set()

    return charger.run(), wake


def batches() -> Loop:
    nothing: Any = None
    shelf: Any = Empty()
    service = Batches(
        JobBackend(nothing, nothing, nothing), files=nothing, shelf=shelf, bounds=ROOMY, policy=RetryPolicy(), keep_s=1.0, max_open=1
    )

    async def wake() -> None:
        service._wake.set()

    return service.run(), wake


@pytest.mark.parametrize("turns", range(3))
@pytest.mark.parametrize("loop", [tickets, charges, batches])
async def test_a_loop_that_is_woken_and_stopped_in_one_moment_ends(loop: Callable[[], Loop], turns: int) -> None:
    running, wake = loop()
    task = asyncio.get_running_loop().create_task(running)
    await asyncio.sleep(0.05)  # until it waits
    await wake()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=5.0)
    assert task.cancelled()
