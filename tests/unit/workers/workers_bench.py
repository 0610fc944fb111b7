"""Fake worker processes under the real supervisor, `workers/parent/workers`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from control_plane.core.algorithms.backoff import RestartLimits
from control_plane.core.fingerprint import Fingerprint
from control_plane.triton.compute_time import OpenCharge
from control_plane.workers.messages.from_workers import Alive, Listening
from control_plane.workers.parent.workers import Workers
from tests.aio import settle
from tests.fakes import FakeModels, FakeWorker, FakeWorkers

KNOWN = Fingerprint(b"k" * 32, True)
LIMITS = RestartLimits(first_delay_s=1.0, max_delay_s=8.0, settled_after_s=60.0)


class FakeCharges:
    """Fake `workers/parent/workers.ChargeSink`."""

    def __init__(self) -> None:
        self.open: list[OpenCharge] = []

    def include(self, charges: Iterable[OpenCharge]) -> None:
        self.open += charges


class Bench:
    def __init__(self, count: int) -> None:
        self.launcher, self.models = FakeWorkers(), FakeModels()
        self.charges = FakeCharges()
        self.workers = Workers(count=count, launcher=self.launcher, limits=LIMITS)

    @property
    def started(self) -> list[FakeWorker]:
        return self.launcher.started


@asynccontextmanager
async def running(count: int = 2, *, prepare: Callable[[Bench], object] = lambda bench: None) -> AsyncIterator[Bench]:
    """The supervisor with its workers started but not yet open."""
    bench = Bench(count)
    prepare(bench)
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(bench.workers.run(bench.models, bench.charges))
        await settle()
        yield bench
        keeping.cancel()


@asynccontextmanager
async def opened(count: int = 2, *, prepare: Callable[[Bench], object] = lambda bench: None) -> AsyncIterator[Bench]:
    async with running(count, prepare=prepare) as bench, asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(bench.workers.open())
        await settle()
        for worker in bench.started:
            worker.say(Listening())
        await opening
        yield bench


@asynccontextmanager
async def speaking(worker: FakeWorker) -> AsyncIterator[None]:
    """Within the block the worker says that it is alive, as real ones do."""

    async def speak() -> None:
        while True:
            worker.say(Alive())
            await asyncio.sleep(0.25)

    async with asyncio.TaskGroup() as tasks:
        speaking = tasks.create_task(speak())
        yield
        speaking.cancel()
