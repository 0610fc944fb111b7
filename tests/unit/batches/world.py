"""The world of jobs (`tests/unit/jobs/world`) with files and batches on the real folder shelf, whose processes can die."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from control_plane.batches.adapters.folder_shelf import FolderShelf
from control_plane.batches.batches import Batches
from control_plane.batches.domain.batch import Batch, StoredFile
from control_plane.batches.files import Files
from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.domain.delivery import Delivery
from control_plane.jobs.domain.job import Job
from tests.fakes.batch_lines import AnsweringLines
from tests.fakes.jobs import ROOMY
from tests.unit.jobs.world import CALLER, Fate, World, running, world

_LINES = 70
CHUNKS = 3
WRONG = "wrong-5"
OK = sorted(f"line-{number}" for number in range(_LINES) if number != 5)
_KEEP_S = 1e5


def content_of_input(lines: int = _LINES) -> bytes:
    """An input file, one line of which is answered with an error."""
    ids = [WRONG if number == 5 else f"line-{number}" for number in range(lines)]
    body = {"model": "m", "input": "a text"}
    return b"\n".join(orjson.dumps({"custom_id": each, "method": "POST", "url": "/v1/embeddings", "body": body}) for each in ids)


def batches_of(jobs: World, shelf: Any, files: Files, *, fate: Fate | None = None, max_open: int = 100) -> Batches:
    """The service over the stores of a world of jobs, whose jobs are its lines."""
    fate = fate or Fate()
    limits: dict[str, Any] = {"bounds": ROOMY, "policy": jobs.policy, "keep_s": _KEEP_S, "max_open": max_open}
    batches = Batches(jobs.backend(fate), shelf=fate.of(shelf), files=files, **limits, today_s=jobs.now_s)
    files.answer_bytes = batches.answer_bytes
    return batches


@dataclass
class BatchWorld:
    """Where processes that look after batches come and go; what they leave is on disk."""

    jobs: World
    shelf: FolderShelf

    def files(self, fate: Fate | None = None) -> Files:
        return Files((fate or Fate()).of(self.shelf), max_bytes=1 << 20, today_s=self.jobs.now_s)

    def batches(self, fate: Fate | None = None) -> Batches:
        """The service as a process has it that does not know what others have seen."""
        return batches_of(self.jobs, self.shelf, self.files(fate), fate=fate)

    async def upload(self, lines: int = _LINES) -> str:
        """Keep an input file; returned is its id."""
        file = StoredFile(f"file-{uuid4().hex}", CALLER.tenant, "in.jsonl", "batch", 0, self.jobs.now_s())
        return (await self.shelf.add_file(file, pieces_of(content_of_input(lines)))).id

    async def create(self, *, webhook: str = "") -> Batch:
        return await self.batches().create(CALLER, await self.upload(), None, webhook=webhook)

    async def webhooks(self) -> list[Delivery]:
        """What is to be told, or was."""
        return [job.webhook for job in await self._records() if job.webhook is not None]

    async def compute(self) -> None:
        """Have a process that lives compute every open job, and charge it."""
        sweeper = self.jobs.sweeper()
        async with running(self.jobs.runner(slots=4)):
            while open_jobs := [job for job in await self._records() if job.is_open or (job.charge is not None and not job.is_charged)]:
                await sweeper.sweep()
                latest_s = max(job.ready_s for job in open_jobs)
                self.jobs.clock_s = max(self.jobs.clock_s + 0.1, latest_s)

    async def live_through(self, batch: Batch, batches: Batches | None = None) -> None:
        """A process that does not die comes, and looks after the batch until it has ended."""
        batches = batches or self.batches()
        while (await batches.progress(batch)).ended is None:
            with suppress(StoreUnavailable):  # of another batch
                await batches.advance()
            await self.compute()
            self.jobs.clock_s += 10.0

    async def content(self, file_id: str) -> bytes:
        """Return a file's content as it is on disk; empty for one that there is not."""
        path = self._tenant / file_id / "content"
        return path.read_bytes() if path.exists() else b""

    async def answers(self, batch: Batch) -> dict[str, list[str]]:
        """Return the names of the lines in the output file and in the error file, in order."""
        files = {"output": batch.output_file_id, "error": batch.error_file_id}
        return {
            name: sorted(json.loads(line)["custom_id"] for line in (await self.content(file_id)).splitlines())
            for name, file_id in files.items()
        }

    def input_of(self, batch: Batch) -> Path:
        """Where the batch keeps its input."""
        return self._tenant / batch.id / "input"

    @property
    def _tenant(self) -> Path:
        return self.jobs.folder / "spool" / "batches" / sha256(CALLER.tenant.encode()).hexdigest()[:32]

    async def forget(self) -> list[str]:
        """Let everything that is kept be over, and return what is left on disk."""
        self.jobs.clock_s += 1e9
        for _ in range(2):
            await self.batches().advance()
            await self.jobs.sweeper().sweep()
        return sorted(str(path.relative_to(self.jobs.folder)) for path in (self.jobs.folder / "spool").rglob("*") if path.is_file())

    async def _records(self) -> list[Job]:
        return await self.jobs.store.jobs_of("team", state=None, before="", limit=1000)


async def pieces_of(content: bytes) -> AsyncIterator[bytes]:
    yield content


@asynccontextmanager
async def batch_world(folder: Path, *, carries_bytes: int = 0) -> AsyncIterator[BatchWorld]:
    """The world on a folder; `carries_bytes`: bodies and results up to this size are in the records."""
    async with world(folder, carries_bytes=carries_bytes) as jobs:
        jobs.compute = AnsweringLines()
        shelf = FolderShelf(folder / "spool" / "batches")
        try:
            yield BatchWorld(jobs, shelf)
        finally:
            await shelf.close()
