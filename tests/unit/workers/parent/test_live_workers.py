from __future__ import annotations

import asyncio

from control_plane.workers.messages.to_workers import AnnounceDrain
from control_plane.workers.parent.live_workers import LiveWorkers
from control_plane.workers.parent.worker_handle import WorkerHandle
from tests.aio import settle
from tests.fakes import FakeWorker


def started(live: LiveWorkers, number: int) -> tuple[WorkerHandle, FakeWorker]:
    process = FakeWorker(number)
    worker = WorkerHandle(process)
    live.add(number, worker)
    return worker, process


async def test_all_that_run_are_told_and_those_that_have_ended_are_not() -> None:
    live = LiveWorkers()
    (gone, first), (stays, second) = started(live, 0), started(live, 1)
    live.remove(0)
    live.tell(AnnounceDrain())
    assert (list(live), gone in live, stays in live) == ([stays], False, True)
    assert (first.told, second.told) == ([], [AnnounceDrain()])


async def test_whoever_waits_looks_again_when_a_worker_has_changed_or_ended() -> None:
    live = LiveWorkers()
    worker, _ = started(live, 0)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(live.until(lambda: worker.is_drained)), tasks.create_task(live.until(lambda: worker not in live))]
        await settle()
        assert [each.done() for each in waiting] == [False, False]
        worker.is_drained = True
        live.changed()
        await settle()
        assert [each.done() for each in waiting] == [True, False]
        live.remove(0)
        await settle()
        assert waiting[1].done()
