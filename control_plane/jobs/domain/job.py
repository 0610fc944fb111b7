"""The record of a job and its states; pure values, stored as JSON by `job_text`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256

from control_plane.jobs.domain.delivery import Delivery, DeliveryKind
from control_plane.metering.domain.usage import Usage


class JobState(StrEnum):
    """State of a job; `transitions` has the way from each to the next."""

    QUEUED = "queued"
    """Waits for a runner; not before `ready_s` after an attempt that failed."""
    RUNNING = "running"
    """Claimed by a runner, whose lease ends at `lease_until_s` unless it is renewed."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The answer is an error that another attempt would meet again, such as a wrong shape; it is the result."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Its deadline passed before it was done."""
    DEAD = "dead"
    """Every attempt that it is allowed has failed; an administrator may queue it again or drop it."""


class PriceClass(StrEnum):
    """Price class of a job, which its caller pays for: how soon it is to begin."""

    STANDARD = "standard"
    ECONOMY = "economy"
    """Runs where no standard job waits, until its limit has come."""


PASSED_OVER_S = {PriceClass.STANDARD: 600.0, PriceClass.ECONOMY: 6 * 3600.0}
"""Seconds after which a job is no longer passed over for its tenant's others, by class."""


STILL_S = 7.5
"""Seconds for which a claim is watched, and not renewed, before it is another runner's: leases are by clocks that may be set, or
differ between hosts. Half a lease, since a runner that lives renews it after a third."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes of a body or a result, by name and digest: few are in the record itself, many in the spool."""

    name: str
    size_bytes: int
    sha256: str
    data: bytes | None = field(default=None, repr=False)
    """The bytes, where the record has them; empty for a body that is no longer needed. None: they are in the spool."""


@dataclass(frozen=True, slots=True)
class Result:
    """The answer as `infer` would have given it: the first `head_bytes` of the blob are the HTTP head."""

    blob: Blob
    status: int
    head_bytes: int
    failed_lines: int = 0
    """Lines of a batch that were answered with an error."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Usage of the attempt that counts, on the day (UTC, ISO 8601) on which it ended."""

    day: str
    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class Job:
    """Record of one job. Times are seconds since 1970."""

    id: str
    tenant: str
    key_id: str
    scopes: tuple[str, ...]
    """The caller's scopes when the job was accepted: what was accepted is answered, whatever becomes of the key."""
    model: str
    """Model or route, as the caller wrote it."""
    target: str
    """Target of the request that is computed: `/v2/models/MODEL[/versions/N]/infer`."""
    headers: tuple[tuple[str, str], ...]
    """The caller's header fields, without credentials; empty once it has ended and cannot be queued again."""
    body: Blob
    submitted_s: float
    due_s: float
    """When the job is no longer passed over for others of its tenant."""
    deadline_s: float
    price_class: PriceClass = PriceClass.STANDARD
    idempotency_key: str = ""
    fingerprint: str = ""
    """Digest of what the submission asked for beside its body (`frontends/jobs/fingerprint`); kept for as long as its key."""
    state: JobState = JobState.QUEUED
    revision: int = 1
    """Number of this record's version: the store takes only the one that follows the present."""
    fence: int = 0
    """Fencing number: how often the job was claimed. What an earlier claim still does changes nothing."""
    attempts: int = 0
    """Attempts that may have been computed."""
    ready_s: float = 0.0
    """Until when it waits after an attempt; 0 before the first, which needs no clock to agree with another."""
    holder: str = ""
    lease_until_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    error: str = ""
    """Why the last attempt failed, or why the job ended without a result."""
    result: Result | None = None
    charge: Charge | None = None
    is_charged: bool = False
    keep_until_s: float = 0.0
    """When the record and its result may go, once it has ended."""
    keep_at_least_until_s: float = 0.0
    """Keeps the record for longer than the policy says: until the batch that the job is a part of is over."""
    output: Delivery | None = None
    """Where the job's result is written to, and how far that is."""
    webhook: Delivery | None = None
    """What is told of the job's end, once its output is written, and how far that is."""

    @property
    def is_of_batch(self) -> bool:
        """Whether it computes a chunk of a batch, in whose files its result is kept."""
        return self.keep_at_least_until_s > 0.0

    @property
    def is_open(self) -> bool:
        """Whether it still waits or runs, and so counts for the bounds on depth and bytes."""
        return self.state in (JobState.QUEUED, JobState.RUNNING)

    @property
    def has_files(self) -> bool:
        """Whether the spool may have something of it: a body or a result, also one of an attempt that was lost."""
        if self.body.data is None or self.fence > 1:
            return True
        return self.fence == 1 and (self.result is None or self.result.blob.data is None)

    @property
    def kept(self) -> tuple[int, int]:
        """Count and bytes of what its tenant keeps of it after its end: nothing while it is open. A part of a batch
        does not count, since its batch is bounded and needs it.
        """
        if self.is_open or self.is_of_batch:
            return 0, 0
        result_bytes = self.result.blob.size_bytes if self.result is not None else 0
        return 1, result_bytes + (self.body.size_bytes if self.state is JobState.DEAD else 0)

    @property
    def look_at_s(self) -> float:
        """When the sweeper has to look at the job, if nobody changes it before."""
        if self.state is JobState.QUEUED:
            return self.deadline_s
        if self.state is JobState.RUNNING:
            return min(self.lease_until_s - STILL_S, self.deadline_s)
        if self.charge is not None and not self.is_charged:
            return (self.ended_s or 0.0) + UNCHARGED_S
        return self.may_go_s

    @property
    def may_go_s(self) -> float:
        """When an ended record may go, once it is charged: not before what is yet to be delivered of it."""
        return self.keep_until_s if self.due is None else max(self.keep_until_s, self.due[1].until_s)

    @property
    def has_deliveries(self) -> bool:
        """Whether anybody gets anything of it, sooner or later."""
        return self.output is not None or self.webhook is not None

    @property
    def due(self) -> tuple[DeliveryKind, Delivery] | None:
        """The job's next delivery, if one is pending."""
        for kind, delivery in ((DeliveryKind.OUTPUT, self.output), (DeliveryKind.WEBHOOK, self.webhook)):
            if delivery is not None and delivery.is_pending:
                return kind, delivery
        return None

    @property
    def order(self) -> tuple[float, str]:
        """Sort key among its tenant's queued jobs."""
        return self.due_s, self.id


def carried(job_id: str, name: str, data: bytes) -> Blob:
    """Return bytes as a blob that the record carries."""
    return Blob(f"{job_id}/{name}", len(data), sha256(data).hexdigest(), data)


def without_data(blob: Blob) -> Blob:
    """Return a blob of which the record carries nothing any more."""
    return blob if blob.data is None else replace(blob, data=b"")


UNCHARGED_S = 5.0
"""Seconds after which the sweeper charges a job whose runner has not."""


def due_s_of(price_class: PriceClass, *, submitted_s: float, deadline_s: float) -> float:
    """Return when a job is no longer passed over: by its class, but with half its time left to be computed in."""
    return min(submitted_s + PASSED_OVER_S[price_class], (submitted_s + deadline_s) / 2)
