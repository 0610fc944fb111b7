"""Sweeper: looks after jobs that nobody looks after, by `domain/sweeps`, and writes the tickets that are missing.

Every process has one. They may sweep at the same time: each change is a compare-and-swap, and a ticket too many is
acknowledged by whoever finds no job for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.charging import charge
from control_plane.jobs.domain.job import Job, JobState
from control_plane.jobs.domain.sweeps import Care, sweep
from control_plane.jobs.domain.transitions import RetryPolicy
from control_plane.jobs.ports import EVERY_JOB, JobBackend, JobTotals, UsageSums

_log = logging.getLogger(__name__)

_PERIOD_S = 0.5
_AFTER_DEFECT_S = 30.0
_AT_ONCE, _MOST_BATCHES = 200, 20
_TICKETS_AT_ONCE = 500
"""Tickets of a sweep: each is confirmed by the broker, whose connection is given up where all take longer than 10 s."""
_ORPHANS_EVERY_S = 600.0
_ORPHANS_S = 0.2
"""Time of a sweep in which files without a record are looked for: leases that have ended wait for as long, and for one part."""
_ORPHAN_AFTER_S = 3600.0
"""Age from which files without a record are removed: longer than any body takes to be accepted."""


class Sweeper:
    """Sweeper of one process for jobs that nobody looks after any more; `run` runs it."""

    def __init__(
        self,
        backend: JobBackend,
        *,
        usage: UsageSums,
        policy: RetryPolicy,
        kept: JobTotals,
        on_ended: Callable[[Job], None] = lambda job: None,
        today_s: Callable[[], float] = time.time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`kept` is what each tenant keeps of its ended jobs at most; `on_ended` is told of each job that this has ended; `today_s` is
        seconds since 1970, `now_s` the loop's time.
        """
        self._store, self._queue, self._spool, self._usage = backend.store, backend.queue, backend.spool, usage
        self._policy = policy
        self._kept, self._on_ended = kept, on_ended
        self._today_s, self._now_s = today_s, now_s
        self._seen: dict[tuple[str, int], float] = {}
        """Since when each version of a record that the last sweep looked at was seen."""
        self._were_missing = 0
        self._is_away = False
        """Whether a store or the broker could not be reached when last asked."""
        self._orphans_s = float("-inf")
        """When files without a record were last looked for."""
        self._parts: list[str] = []
        """Parts of the spool that are yet to be looked at for them."""

    async def run(self) -> None:
        """Sweep twice a second, through outages, until cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            try:
                await self.sweep()
                self._is_away = False
            except StoreUnavailable as exc:
                if not self._is_away:
                    _log.warning("jobs are not swept for now: %s", exc)
                self._is_away = True
            except Exception:  # one record must not end the gateway
                _log.exception("jobs are not swept for now; this is a defect")
                await asyncio.sleep(_AFTER_DEFECT_S)

    async def sweep(self) -> None:
        """Sweep once. Raises StoreUnavailable."""
        now_s, seen = self._today_s(), dict[tuple[str, int], float]()
        # Records that may go come before leases that have just ended: as many must go as jobs end in the meantime.
        for _ in range(_MOST_BATCHES):
            neglected = await self._store.neglected(now_s, limit=_AT_ONCE)
            uncharged, was_due = list[Job](), False
            for job in neglected:
                version = job.id, job.revision
                seen[version] = self._seen.get(version, self._now_s())
                was_due |= await self._look_after(job, now_s, self._now_s() - seen[version], uncharged)
            await charge(uncharged, store=self._store, usage=self._usage)
            if len(neglected) < _AT_ONCE or not was_due:
                break
        self._seen = seen
        for job in await self._store.surplus(self._kept, limit=_AT_ONCE):
            await self._remove(job)
        await self._write_missing_tickets(now_s)
        if abs(now_s - self._orphans_s) >= _ORPHANS_EVERY_S:  # also after the clock was set back
            self._orphans_s, self._parts = now_s, await self._spool.parts()
        await self._remove_orphans(now_s)

    async def _look_after(self, job: Job, now_s: float, still_s: float, uncharged: list[Job]) -> bool:
        """Do what is due for a job that was seen in this version for so long; False: nothing is. One that is to be charged is
        left in `uncharged`.
        """
        match sweep(job, now_s=now_s, still_s=still_s, policy=self._policy):
            case Job() as new:
                # A store that takes no change took no renewal either: its runner comes first once it does again.
                self._seen.pop((job.id, job.revision), None)
                if await self._store.replace(new):
                    _log.info("job %s was %s and is %s now: %s", job.id, job.state, new.state, new.error)
                    if not new.is_open:
                        self._on_ended(new)
                    if new.state is JobState.EXPIRED and new.has_files:
                        await self._spool.prune(job.id)
            case Care.CHARGE:
                uncharged.append(job)
            case Care.REMOVE:
                await self._remove(job)
            case None:
                return False
        return True

    async def _remove(self, job: Job) -> None:
        if await self._store.remove(job) and job.has_files:
            await self._spool.prune(job.id)

    async def _write_missing_tickets(self, now_s: float) -> None:
        """Write tickets for ready jobs that have none, once they were missing twice: some may be on their way."""
        missing = max(0, await self._store.ready(now_s, limit=EVERY_JOB) - await self._queue.depth())
        if (writes := min(missing, self._were_missing, _TICKETS_AT_ONCE)) > 0:
            await self._queue.publish(writes)
        self._were_missing = missing - writes

    async def _remove_orphans(self, now_s: float) -> None:
        """Remove files without a record, from some parts of the spool at a time: of 100,000 jobs a look takes a minute."""
        until_s = self._now_s() + _ORPHANS_S
        while self._parts:
            for job_id in await self._spool.jobs(self._parts.pop(), before_s=now_s - _ORPHAN_AFTER_S):
                if await self._store.get(job_id) is None:
                    await self._spool.prune(job_id)
            if self._now_s() > until_s:
                break
