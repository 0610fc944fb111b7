"""Charges a job's usage exactly once, whoever does it and however often.

The store of usage remembers a batch's id, and the id follows from the job and its claim: a charge that is sent again,
after the end of who sent it first, is recognised. Used by `jobs/runner` and `jobs/sweeper`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.domain.job import Job
from control_plane.jobs.ports import JobStore, UsageSums
from control_plane.metering.domain.usage import UsageBatch, make_storable_key

_log = logging.getLogger(__name__)

_AT_ONCE = 200
_PAUSE_S = 0.2
"""Time for which the first of some jobs waits for more to be charged with it."""


async def charge(jobs: Iterable[Job], *, store: JobStore, usage: UsageSums) -> None:
    """Charge ended jobs, and note that they are charged. Raises StoreUnavailable."""
    due = {job.id: (job, job.charge) for job in jobs if job.charge is not None and not job.is_charged}
    if not due:
        return
    keys = ((job, make_storable_key(charge.day, job.tenant, charge.model), charge.usage) for job, charge in due.values())
    await usage.add_all([UsageBatch(f"{job.id}/{job.fence}", ((key, used),)) for job, key, used in keys])
    await store.note_charged([job for job, _ in due.values()])  # passed over where somebody else noted the same first


class Charger:
    """Queue of ended jobs that a runner has yet to charge; `run` charges as many at once as there are."""

    def __init__(self, *, store: JobStore, usage: UsageSums) -> None:
        self._store, self._usage = store, usage
        self._due: deque[Job] = deque()
        self._is_wanted, self._is_urgent, self._is_settled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._is_settled.set()

    def put(self, job: Job) -> None:
        """Have a job charged soon; the sweeper charges it should this process end before."""
        self._due.append(job)
        self._is_settled.clear()
        self._is_wanted.set()

    async def run(self) -> None:
        """Charge what is put in, until cancelled."""
        while True:
            await self._is_wanted.wait()
            if len(self._due) < _AT_ONCE:
                with suppress(TimeoutError):
                    # Not `wait_for`, which on Python 3.11 swallows a cancellation that comes just as it is woken.
                    async with asyncio.timeout(_PAUSE_S):
                        await self._is_urgent.wait()
            jobs = [self._due.popleft() for _ in range(min(len(self._due), _AT_ONCE))]
            try:
                await charge(jobs, store=self._store, usage=self._usage)
            except StoreUnavailable as exc:
                _log.warning("%d jobs are left to the sweeper, which will charge them: %s", len(jobs), exc)
            except Exception:
                _log.exception("%d jobs were not charged; this is a defect", len(jobs))
            if not self._due:
                self._is_wanted.clear()
                self._is_settled.set()

    async def settle(self, timeout_s: float) -> None:
        """Charge without delay from now on, and wait until nothing is left, for at most `timeout_s`."""
        self._is_urgent.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_settled.wait(), timeout_s)
