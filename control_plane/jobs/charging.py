"""Charges a job's usage exactly once, whoever does it and however often.

The store of usage remembers a batch's id, and the id follows from the job and its claim: a charge that is sent again,
after the end of who sent it first, is recognised. Used by `jobs/runner` and `jobs/sweeper`.
"""

from __future__ import annotations

from control_plane.jobs.domain.job import Job
from control_plane.jobs.domain.transitions import charged
from control_plane.jobs.ports import JobStore, UsageSums
from control_plane.metering.domain.usage import UsageBatch, make_storable_key


async def charge(job: Job, *, store: JobStore, usage: UsageSums) -> None:
    """Charge an ended job, and note that it is charged. Raises StoreUnavailable."""
    if job.charge is None or job.is_charged:
        return
    key = make_storable_key(job.charge.day, job.tenant, job.charge.model)
    await usage.add(UsageBatch(f"{job.id}/{job.fence}", ((key, job.charge.usage),)))
    await store.replace(charged(job))  # refused where the sweeper was first, which noted the same
