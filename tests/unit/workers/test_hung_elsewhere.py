"""Fate of a request that never ends and of those like it, where callers reach several workers with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from control_plane.core.errors import DeadlineExceeded, QueryOfDeath
from control_plane.triton.copy_silence import HUNG
from control_plane.workers.messages.between_workers import HangSuspected
from tests.unit.fleet.fleet_bench import READY
from tests.unit.fleet.routing.dispatch_bench import status
from tests.unit.fleet.routing.faults.hung_requests_bench import TAKES_S, Mended, crowd, given_up
from tests.unit.workers.worker_bench import Parent, Worker, serving

pytestmark = pytest.mark.virtual_time


class Scene(Mended):
    """Two workers in front of three servers."""

    def __init__(self, parent: Parent) -> None:
        super().__init__(parent, HUNG)
        self.one, self.other = parent.workers
        self.dispatches = [each.fleet.dispatch for each in parent.workers]
        for here, there in (self.dispatches, self.dispatches[::-1]):
            here.deaths.tell = there.deaths.learn


@asynccontextmanager
async def two_workers() -> AsyncIterator[Scene]:
    parent = Parent(servers=3)
    async with serving(parent):
        for triton in parent.tritons.values():
            triton.states["a"] = READY
        await asyncio.sleep(1.0)
        scene = Scene(parent)
        try:
            yield scene
        finally:
            for task in scene.tasks:
                task.cancel()
            await asyncio.gather(*scene.tasks, return_exceptions=True)


def told(worker: Worker) -> list[HangSuspected]:
    return [message for message in worker.told if isinstance(message, HangSuspected)]


async def test_who_sends_it_again_at_once_to_another_worker_hangs_one_replica_at_a_time() -> None:
    async with two_workers() as scene, crowd(scene, *scene.dispatches):
        for number in range(8):
            with suppress(DeadlineExceeded, QueryOfDeath):
                await scene.send("endless", dispatch=scene.dispatches[number % 2])
        assert len(scene.wedged) == 2
        for dispatch in scene.dispatches:
            with pytest.raises(QueryOfDeath):
                await scene.send("endless", dispatch=dispatch)


@pytest.mark.parametrize("is_large", [False, True])
async def test_one_like_it_waits_at_another_worker_and_others_do_not(is_large: bool) -> None:
    endless = "endless" + " " * 2**18 * is_large
    async with two_workers() as scene, crowd(scene, *scene.dispatches) as waited:
        scene.ended_after_s = 3600.0
        await given_up(scene.send(endless, dispatch=scene.dispatches[0]))
        if is_large:
            await asyncio.sleep(0.3)
        waited.clear()
        await given_up(scene.send(endless, timeout_s=9.0, dispatch=scene.dispatches[1]))
        assert len(scene.wedged) == 1
        assert len(waited) > 200
        await given_up(scene.send(endless, dispatch=scene.dispatches[1]))
        assert len(scene.wedged) == 2, "ten seconds are over"


async def test_it_is_sent_by_another_worker_once_the_replica_has_answered_the_first() -> None:
    async with two_workers() as scene, crowd(scene, *scene.dispatches):
        await given_up(scene.send("slow", dispatch=scene.dispatches[0]))
        began_s = scene.bench.now_s()
        assert status(await scene.send("slow", timeout_s=5.0, dispatch=scene.dispatches[1])) == 200
        # 0.2 s until the first is done, up to 0.25 until that is seen, and its own time.
        assert TAKES_S["slow"] < scene.bench.now_s() - began_s < TAKES_S["slow"] + 0.5
        assert [each.until_s > 0 for each in told(scene.other)] == [True, False]


async def test_it_waits_for_nothing_where_nobody_would_show_that_the_replica_hangs() -> None:
    async with two_workers() as scene:
        scene.ended_after_s = 3600.0
        await given_up(scene.send("endless", dispatch=scene.dispatches[0]))
        await given_up(scene.send("endless", timeout_s=1.0, dispatch=scene.dispatches[1]))
        assert len(scene.wedged) == 2
        assert not told(scene.other)
