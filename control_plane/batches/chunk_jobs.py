"""Jobs of the chunks of batches, under ids that follow from the batch: so each chunk is made, computed and charged once,
however many processes look after the batch. Used by `batches/batches` and `batches/closing`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from control_plane.batches.domain.batch import Batch, BatchState
from control_plane.batches.domain.chunk_job import chunk_job
from control_plane.batches.ports import Shelf
from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.blobs import keep
from control_plane.jobs.domain.job import Job
from control_plane.jobs.domain.transitions import RetryPolicy, cancelled, expired
from control_plane.jobs.ports import Bounds, JobBackend, JobsFull

_log = logging.getLogger(__name__)


class ChunkJobs:
    """Jobs of the chunks of batches, as this process makes, finds and cancels them. Each method but `publish` raises
    StoreUnavailable.
    """

    def __init__(
        self,
        backend: JobBackend,
        *,
        shelf: Shelf,
        bounds: Bounds,
        policy: RetryPolicy,
        today_s: Callable[[], float],
    ) -> None:
        """`today_s` is seconds since 1970."""
        self._shelf = shelf
        self._store, self._queue, self._spool = backend.store, backend.queue, backend.spool
        self._bounds, self._policy = bounds, policy
        self._today_s = today_s

    async def get(self, batch: Batch, number: int) -> Job | None:
        """Return the job of a chunk, if there is one."""
        return await self._store.get(batch.job_id(number))

    async def make(self, batch: Batch, number: int) -> bool:
        """Make the job of a chunk; False: there is no room for it now.

        Another process may make it at the same time: both write the same body under the same name, and its key makes
        one record of it. So the body stays where the record is refused, too; without a record the sweeper removes it.
        """
        job_id = batch.job_id(number)
        lines = await self._shelf.read_chunk(batch, batch.chunks[number])
        body = await keep([lines], job_id=job_id, name="body", store=self._store, spool=self._spool)
        try:
            await self._store.add(chunk_job(batch, number, body, now_s=self._today_s()), self._bounds)
        except JobsFull:
            return False
        return True

    async def cancel(self, job: Job) -> None:
        """Cancel a chunk's job; if it has changed meanwhile, the next look will do."""
        if await self._store.replace(cancelled(job, now_s=self._today_s(), policy=self._policy)):
            await self._spool.prune(job.id)

    async def publish(self, count: int) -> None:
        """Tell runners of so many jobs; where the broker is away, the sweeper does it later."""
        try:
            await self._queue.publish(count)
        except StoreUnavailable as exc:
            _log.warning("no tickets could be written for a batch; the sweeper will: %s", exc)

    async def end_first(self, batch: Batch, state: BatchState) -> None:
        """Make the first job of a batch that was over before it had any, and end it at once: its record has the webhook."""
        over = expired if state is BatchState.EXPIRED else cancelled
        job = await self.get(batch, 0) if await self.make(batch, 0) else None
        if job is not None and job.is_open and await self._store.replace(over(job, now_s=self._today_s(), policy=self._policy)):
            await self._spool.prune(job.id)
