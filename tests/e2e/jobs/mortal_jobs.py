"""A process that accepts a job and a batch, runs them, and dies by `kill -9` at a named step; `test_job_kill_points` forks it.

The stores, the queue and the services are those of a gateway; only what computes is a fake.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import SecretStr

from control_plane.app.stores import open_job_store, open_usage_store
from control_plane.batches.adapters.folder_shelf import FolderShelf
from control_plane.batches.batches import Batches
from control_plane.batches.domain.batch import Batch, StoredFile
from control_plane.batches.files import Files
from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.adapters.folder_spool import FolderSpool
from control_plane.jobs.adapters.rabbitmq_tickets import RabbitmqTickets
from control_plane.jobs.domain.gate import BulkGate
from control_plane.jobs.domain.job import Job
from control_plane.jobs.domain.transitions import RetryPolicy
from control_plane.jobs.jobs import Jobs
from control_plane.jobs.ports import Computed, JobBackend
from control_plane.jobs.runner import JobRunner
from control_plane.jobs.sweeper import Sweeper
from tests.fakes.batch_lines import AnsweringLines
from tests.fakes.jobs import PLENTY, ROOMY, FakeCompute
from tests.unit.batches.world import content_of_input, pieces_of
from tests.unit.jobs.world import CALLER, WANTED

T = TypeVar("T")

POLICY = RetryPolicy(lease_s=3.0, still_s=1.5, first_delay_s=0.2)
PATIENCE_S = 100.0
FILE_ID = f"file-{1:032x}"


class Compute(AnsweringLines):
    """Computes a job or a batch's chunk."""

    async def compute(self, job: Job, body: bytes) -> Computed:
        return await (super().compute(job, body) if job.target == "/v1/embeddings" else FakeCompute.compute(self, job, body))


class Deadly:
    """What is outside of the process, of whose calls one is the last thing that the process does."""

    def __init__(self, outside: Any, step: str, when: str) -> None:
        self._outside, self._step, self._when = outside, step, when

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._outside, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            if name == self._step and self._when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = await found(*args, **named)
            if name == self._step:
                os.kill(os.getpid(), signal.SIGKILL)
            return [Deadly(ticket, self._step, self._when) for ticket in answer] if name == "take" else answer

        return call


async def main(redis: str, broker: str, folder: Path, step: str = "", when: str = "") -> None:
    def deadly(outside: Any) -> Any:
        return Deadly(outside, step, when)

    store = await _once_it_answers(lambda: open_job_store(SecretStr(redis), folder))
    usage = await _once_it_answers(lambda: open_usage_store(SecretStr(redis), folder))
    queue = RabbitmqTickets(SecretStr(broker))
    shelf = deadly(FolderShelf(folder / "spool" / "batches"))
    backend = JobBackend(deadly(store), deadly(queue), deadly(FolderSpool(folder / "spool")))
    jobs = Jobs(backend, bounds=ROOMY, policy=POLICY, expire_s=1e4)
    files = Files(shelf, max_bytes=1 << 20)
    batches = Batches(backend, shelf=shelf, files=files, bounds=ROOMY, policy=POLICY, keep_s=1e5, max_open=100)
    charged = deadly(usage)
    runner = JobRunner(backend, compute=Compute(), usage=charged, gate=BulkGate(4, least=4.0), holder=f"{os.getpid()}", policy=POLICY)
    sweeper = Sweeper(backend, usage=charged, policy=POLICY, kept=PLENTY)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work) for work in (queue.run(), sweeper.run(), batches.run(), runner.run())]
        await _once_it_answers(lambda: jobs.submit(CALLER, WANTED))  # the same job, however often: it has a key
        if await shelf.file(CALLER.tenant, FILE_ID) is None:
            file = StoredFile(FILE_ID, CALLER.tenant, "in.jsonl", "batch", 0, time.time())
            await shelf.add_file(file, pieces_of(content_of_input()))
        (batch,) = await _once_it_answers(lambda: _batch(batches))
        until_s = time.monotonic() + PATIENCE_S
        while open_yet := await _open_yet(batches, batch, store, queue):
            if time.monotonic() > until_s:
                raise TimeoutError(f"after {PATIENCE_S:g} s {open_yet}")
            await asyncio.sleep(0.05)
        for task in running:
            task.cancel()
    await queue.close()


async def _once_it_answers(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until Redis has answered: on a busy machine it takes longer than the second that it is given."""
    while True:
        with suppress(StoreUnavailable):
            return await ask()
        await asyncio.sleep(0.1)


async def _batch(batches: Batches) -> Sequence[Batch]:
    """Create the batch if it is not there."""
    if not await batches.batches_of(CALLER, after="", limit=1):
        await batches.create(CALLER, FILE_ID, None)
    return await batches.batches_of(CALLER, after="", limit=10)


async def _open_yet(batches: Batches, batch: Batch, store: Any, queue: RabbitmqTickets) -> str:
    """Return what is to come to an end yet; empty when all has."""
    try:
        if (await batches.progress(batch)).ended is None:
            return "the batch has not ended"
        for job in await store.jobs_of(None, state=None, before="", limit=100):
            if job.is_open or (job.charge is not None and not job.is_charged):
                return f"this job is not settled: {job}"
        depth = await queue.depth()
    except StoreUnavailable as exc:  # the queue connects in the background
        return str(exc)
    return f"{depth} tickets are left" if depth else ""


def live(words: Sequence[str], errors: Path) -> None:
    """Carry out `main` in a process that was forked for it, and write what it has to say on standard error to a file."""
    with errors.open("w") as sink:
        os.dup2(sink.fileno(), 2)
    redis, broker, folder, *death = words
    asyncio.run(main(redis, broker, Path(folder), *death))
