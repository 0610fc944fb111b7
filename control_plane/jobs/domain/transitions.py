"""Transitions of a job's record: each function returns the record's next version, or raises WrongState.

Every change of a record is one of these, and a store accepts it only for the version it was made from. So of two
that change a job at the same time one succeeds, and the other looks again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from control_plane.jobs.domain.delivery import Delivery, DeliveryKind, announced, recalled, tried
from control_plane.jobs.domain.job import STILL_S, Charge, Job, JobState, Result, without_data

_NEXT: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset((JobState.RUNNING, JobState.CANCELLED, JobState.EXPIRED)),
    JobState.RUNNING: frozenset(set(JobState) - {JobState.RUNNING}),
    JobState.DEAD: frozenset((JobState.QUEUED,)),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.EXPIRED: frozenset(),
}


class WrongState(Exception):
    """The job is in a state from which this transition does not lead."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retry policy: how often and how soon a job is tried again, and how long it is kept."""

    max_attempts: int = 4
    first_delay_s: float = 1.0
    max_delay_s: float = 60.0
    lease_s: float = 15.0
    """Seconds after which a runner that has not renewed its claim has lost it."""
    still_s: float = STILL_S
    """Seconds for which the sweeper has to have seen, by its own monotonic clock, that it was not renewed."""
    keep_s: float = 86_400.0
    """Seconds for which a job that has ended is kept, with its result."""

    def delay_s(self, attempts: int) -> float:
        """Return the delay after so many attempts: doubles from the first to the longest."""
        return min(self.first_delay_s * 2.0 ** min(max(attempts - 1, 0), 64), self.max_delay_s)


def claimed(job: Job, *, holder: str, now_s: float, policy: RetryPolicy) -> Job:
    """Give the job to a runner, under a new fencing number."""
    if job.ready_s > now_s or job.deadline_s <= now_s:
        raise WrongState(f"job {job.id} cannot be claimed now")
    return _moved(
        job,
        JobState.RUNNING,
        fence=job.fence + 1,
        attempts=job.attempts + 1,
        holder=holder,
        lease_until_s=now_s + policy.lease_s,
        started_s=now_s,
    )


def renewed(job: Job, *, now_s: float, policy: RetryPolicy) -> Job:
    """Extend the claim of its holder."""
    _require(job, JobState.RUNNING)
    return replace(job, revision=job.revision + 1, lease_until_s=now_s + policy.lease_s)


def released(job: Job, *, now_s: float, delay_s: float = 0.0, error: str = "") -> Job:
    """Queue the job again after an attempt that was not computed, which does not count."""
    _require(job, JobState.RUNNING)
    return _moved(job, JobState.QUEUED, attempts=job.attempts - 1, ready_s=now_s + delay_s, error=error, **_NOBODY)


def attempt_failed(job: Job, *, error: str, now_s: float, policy: RetryPolicy) -> Job:
    """Queue the job for another attempt, after a delay; it is dead once it has had as many as it may."""
    _require(job, JobState.RUNNING)
    if job.attempts >= policy.max_attempts:
        return _ended(job, JobState.DEAD, now_s=now_s, policy=policy, error=error)
    return _moved(job, JobState.QUEUED, ready_s=now_s + policy.delay_s(job.attempts), error=error, **_NOBODY)


def finished(job: Job, result: Result, charge: Charge | None, *, now_s: float, policy: RetryPolicy) -> Job:
    """End the job with the one result that it will ever have."""
    state = JobState.SUCCEEDED if result.status == 200 else JobState.FAILED
    return _ended(job, state, now_s=now_s, policy=policy, result=result, charge=charge)


def broken(job: Job, *, error: str, now_s: float, policy: RetryPolicy) -> Job:
    """End the job as dead at once: another attempt would meet the same."""
    _require(job, JobState.RUNNING)
    return _ended(job, JobState.DEAD, now_s=now_s, policy=policy, error=error)


def cancelled(job: Job, *, now_s: float, policy: RetryPolicy) -> Job:
    """End the job at its caller's wish, whether it waits or runs."""
    return _ended(job, JobState.CANCELLED, now_s=now_s, policy=policy)


def expired(job: Job, *, now_s: float, policy: RetryPolicy) -> Job:
    """End the job since its deadline has passed."""
    error = job.error or "the deadline passed before a runner had time for the job"
    return _ended(job, JobState.EXPIRED, now_s=now_s, policy=policy, error=error)


def requeued(job: Job, *, now_s: float) -> Job:
    """Queue a dead job anew, with all its attempts before it and as much time as it had at first."""
    _require(job, JobState.DEAD)
    given_s = job.deadline_s - job.submitted_s
    again = _moved(job, JobState.QUEUED, attempts=0, ready_s=now_s, ended_s=None, error="", **_NOBODY)
    due_s = now_s + (job.due_s - job.submitted_s)
    return replace(
        again, deadline_s=now_s + given_s, due_s=due_s, keep_until_s=0.0, output=recalled(job.output), webhook=recalled(job.webhook)
    )


def charged(job: Job) -> Job:
    """Note that the store of usage has taken the job's charge."""
    if job.charge is None or job.is_charged:
        raise WrongState(f"job {job.id} has nothing to charge")
    return replace(job, revision=job.revision + 1, is_charged=True)


def told(job: Job, webhook: Delivery) -> Job:
    """Give an ended job the webhook of what it is a part of."""
    if job.is_open or job.webhook is not None:
        raise WrongState(f"job {job.id} is {job.state}, and can be given no webhook")
    return replace(job, revision=job.revision + 1, webhook=webhook)


def delivery_taken(job: Job, *, now_s: float) -> Job:
    """Begin an attempt at the delivery that is due."""
    if job.due is None or job.due[1].due_s > now_s:
        raise WrongState(f"nothing of job {job.id} is to be delivered now")
    kind, delivery = job.due
    return _with_delivery(job, kind, tried(delivery, now_s=now_s))


def delivery_noted(job: Job, done: Delivery, *, now_s: float) -> Job:
    """Note what came of the attempt; the webhook follows the output."""
    if job.due is None:
        raise WrongState(f"nothing of job {job.id} is being delivered")
    kind, _ = job.due
    noted = _with_delivery(job, kind, done)
    is_next = kind is DeliveryKind.OUTPUT and not done.is_pending
    return replace(noted, webhook=announced(job.webhook, now_s=now_s)) if is_next else noted


def _with_delivery(job: Job, kind: DeliveryKind, delivery: Delivery) -> Job:
    changed: dict[str, Any] = {kind.value: delivery}
    return replace(job, revision=job.revision + 1, **changed)


_NOBODY: dict[str, Any] = {"holder": "", "lease_until_s": 0.0}


def _ended(job: Job, state: JobState, *, now_s: float, policy: RetryPolicy, error: str = "", **changes: Any) -> Job:
    keep_until_s = max(now_s + policy.keep_s, job.keep_at_least_until_s)
    # A dead job may be queued again; of the others the caller's fields, which may be most of the record, are of no use any more.
    body, headers = (job.body, job.headers) if state is JobState.DEAD else (without_data(job.body), ())
    if job.output is not None and state in (JobState.SUCCEEDED, JobState.FAILED):  # the webhook says when it is there
        changes["output"] = announced(job.output, now_s=now_s)
    else:
        changes["webhook"] = announced(job.webhook, now_s=now_s)
    return _moved(job, state, ended_s=now_s, keep_until_s=keep_until_s, error=error, body=body, headers=headers, **_NOBODY, **changes)


def _require(job: Job, state: JobState) -> None:
    """Require a state where the table alone would allow more: two transitions lead to QUEUED."""
    if job.state is not state:
        raise WrongState(f"job {job.id} is {job.state}, not {state}")


def _moved(job: Job, state: JobState, **changes: Any) -> Job:
    if state not in _NEXT[job.state]:
        raise WrongState(f"job {job.id} is {job.state}, from which it cannot become {state}")
    return replace(job, state=state, revision=job.revision + 1, **changes)
