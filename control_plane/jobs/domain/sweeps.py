"""What the sweeper does about a job that nobody looks after: pure, called by `jobs/sweeper`."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from control_plane.jobs.domain.job import Job, JobState
from control_plane.jobs.domain.transitions import RetryPolicy, attempt_failed, expired

LOST = "the runner that had claimed the job ended, or could not be reached, before it was done"


class Care(Enum):
    """Work that is due besides a transition."""

    CHARGE = "charge"
    REMOVE = "remove"


def sweep(job: Job, *, now_s: float, still_s: float, policy: RetryPolicy) -> Job | Care | None:
    """Return the job's next version, or what else is due; None: nothing. `still_s` is for how long this version was seen."""
    if job.look_at_s > now_s:
        return None
    match job.state:
        case JobState.QUEUED:
            return expired(job, now_s=now_s, policy=policy)
        case JobState.RUNNING:
            if job.deadline_s <= now_s:
                return expired(job, now_s=now_s, policy=policy)
            if job.lease_until_s > now_s or still_s < policy.still_s:
                return None
            return attempt_failed(job, error=LOST, now_s=now_s, policy=policy)
        case _:
            return Care.REMOVE if job.charge is None or job.is_charged else Care.CHARGE


def surplus(ended: Iterable[Job], *, jobs: int, size_bytes: int, limit: int) -> list[Job]:
    """Return the first of a tenant's ended jobs, which it has so many or so many bytes too many of, but `limit` at
    most, and none that is yet to be charged.
    """
    found: list[Job] = []
    for job in ended:
        if (jobs <= 0 and size_bytes <= 0) or len(found) == limit:
            break
        count, kept_bytes = job.kept
        if count and (job.charge is None or job.is_charged):
            found.append(job)
            jobs, size_bytes = jobs - count, size_bytes - kept_bytes
    return found
