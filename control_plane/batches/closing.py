"""Close of a batch all chunks of which have ended: its output files, its webhook, and the note that it is over.

Whoever sees the end first closes a batch; another who does it, too, writes the same bytes. Used by `batches/batches`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable

from control_plane.batches.chunk_jobs import ChunkJobs
from control_plane.batches.domain.batch import Batch, StoredFile
from control_plane.batches.domain.input_lines import lines_of
from control_plane.batches.domain.output_lines import ChunkEnd, can_be_without_a_job, chunk_end, ended, split_result, unanswered_lines
from control_plane.batches.ports import Shelf
from control_plane.batches.webhook import tell
from control_plane.concurrency.run_steps import run_in_steps
from control_plane.jobs.domain.job import JobState
from control_plane.jobs.ports import JobBackend, SpoolDamaged
from control_plane.jobs.pruning import Pruner

_log = logging.getLogger(__name__)


class Closing:
    """Service that closes batches."""

    def __init__(self, backend: JobBackend, *, shelf: Shelf, jobs: ChunkJobs, today_s: Callable[[], float]) -> None:
        """`today_s` is seconds since 1970."""
        self._shelf, self._jobs, self._store, self._spool = shelf, jobs, backend.store, backend.spool
        self._today_s = today_s
        self._pruner = Pruner(self._spool, today_s=today_s)

    async def close(self, batch: Batch, known: dict[int, ChunkEnd]) -> None:
        """Write the output, tell of the end and note it. A chunk of which the store says something else than what is known of
        its end is dropped from `known`, and the batch stays open. Raises StoreUnavailable.
        """
        if not await self._are_known(batch, known):
            return
        ends = [known[number] for number in range(len(batch.chunks))]
        end = ended(batch, ends, now_s=self._today_s())
        for is_wanted, file_id, name, part in (
            (end.has_output, batch.output_file_id, "output", 0),
            (end.has_errors, batch.error_file_id, "error", 1),
        ):
            if is_wanted:
                file = StoredFile(file_id, batch.tenant, f"{batch.id}_{name}.jsonl", "batch_output", 0, self._today_s(), batch.model)
                await self._shelf.add_file(file, self._lines(batch, ends, part))
        if batch.webhook and not await tell(batch, end, self._store, now_s=self._today_s()):
            await self._jobs.end_first(batch, end.state)
            return
        await self._shelf.end(batch, end)
        for number in range(len(batch.chunks)):
            self._pruner.put(batch.job_id(number), tenant=batch.tenant, keep="", size_bytes=0)  # small; what came of it counts as files
        _log.info("batch %s is %s: %d lines completed, %d failed", batch.id, end.state, end.completed, end.failed)

    async def prune(self) -> None:
        """Remove the answers of batches that this process closed some time ago; another may have been about to close them, too.
        Raises StoreUnavailable.
        """
        await self._pruner.prune()

    async def _are_known(self, batch: Batch, known: dict[int, ChunkEnd]) -> bool:
        """Whether the store still says of every chunk how it has ended. One that it was set back to before is computed again."""
        for number, chunk in enumerate(batch.chunks):
            job, end = await self._jobs.get(batch, number), known[number]
            if not can_be_without_a_job(end) if job is None else chunk_end(job, chunk.lines) != end:
                del known[number]
        return len(known) == len(batch.chunks)

    async def _lines(self, batch: Batch, ends: list[ChunkEnd], part: int) -> AsyncIterator[bytes]:
        """Yield the lines for the output file (`part` 0) or the error file (1), chunk by chunk."""
        for number, end in enumerate(ends):
            job = await self._jobs.get(batch, number)
            state, error = end.state, "" if job is None else job.error
            unanswered_part = 1
            if job is not None and job.result is not None:
                try:
                    whole = await self._spool.read(job.result.blob)
                except SpoolDamaged as exc:
                    # Computed and charged, but lost: said in the file that is there in any case, or the batch would never end.
                    _log.error("batch %s has lost the answers of a chunk: %s", batch.id, exc)
                    state, error, unanswered_part = JobState.DEAD, "its answers were damaged on disk", 0 if end.completed else 1
                else:
                    yield split_result(whole[job.result.head_bytes :], end.completed)[part]
                    continue
            if part == unanswered_part:
                lines = await run_in_steps(lines_of(await self._shelf.read_chunk(batch, batch.chunks[number])))
                yield unanswered_lines(batch.job_id(number), lines, state, error)
