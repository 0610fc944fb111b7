"""Ports of jobs: the store of records, the queue of tickets, the spool, the computing, and the store of usage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from control_plane.jobs.domain.claims import HEADS, TenantQueue
from control_plane.jobs.domain.delivery import Delivery
from control_plane.jobs.domain.job import Blob, Job, JobState
from control_plane.metering.domain.usage import Usage, UsageBatch
from control_plane.protocols.http1 import HttpAnswer

EVERY_JOB = 1 << 30
"""Limit that no number of jobs reaches."""
MOST_PLACES = 1000
"""Jobs that are counted before one that waits: callers ask for each of their thousands of jobs, again and again."""


@dataclass(frozen=True, slots=True)
class JobTotals:
    """How many jobs there are, or may be at most, and the bytes of their bodies."""

    jobs: int = 0
    size_bytes: int = 0
    ended: int = 0
    """Jobs that have ended since the store was made."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Most open jobs and bytes, of one tenant and of all together."""

    of_tenant: JobTotals
    in_all: JobTotals


@dataclass(frozen=True, slots=True)
class Backlog:
    """Jobs of all tenants that wait, run, or need an administrator."""

    queued: int
    running: int
    dead: int
    oldest_s: float | None
    """When the oldest of those that wait was submitted, in seconds since 1970; None where none waits."""


class DeliveryIndex(Protocol):
    """Index of what is yet to be delivered of the jobs in a store, in step with the records. Raises StoreUnavailable."""

    async def due(self, now_s: float, *, of_tenant: int) -> Mapping[str, Sequence[str]]:
        """Return for each tenant the ids of jobs whose delivery is due, the longest first, so many of each at most."""

    async def end(self, tenant: str, url: str, *, now_s: float, until_s: float) -> None:
        """Note that a webhook's receiver wants nothing any more, for so long; what was noted until now is forgotten."""

    async def has_ended(self, tenant: str, url: str, *, now_s: float) -> bool:
        """Return whether that was noted, and holds."""


class Courier(Protocol):
    """Courier of deliveries of one kind, which makes one attempt at a time."""

    async def deliver(self, job: Job, delivery: Delivery) -> Delivery:
        """Make an attempt, in two minutes at most, and return the delivery as it is when that was the last one.

        Raises NotDelivered, whose text may be shown to the caller: it is to be made again. StoreUnavailable.
        """


class NotDelivered(Exception):
    """A delivery (a webhook or an output) did not reach its destination."""


class JobStore(Protocol):
    """Durable store of records. Each method raises StoreUnavailable when the store cannot be reached."""

    carries_bytes: int
    """Bodies and results up to this size are carried by the record; larger ones are in the spool."""
    deliveries: DeliveryIndex
    """What is to be delivered of these jobs, which changes with the records."""

    async def add(self, job: Job, bounds: Bounds) -> Job:
        """Add a new record, and return it; where the tenant's idempotency key is known already, return that job.

        Raises JobsFull: the bounds leave no room for it.
        """

    async def get(self, job_id: str) -> Job | None: ...

    async def knows_key(self, tenant: str, idempotency_key: str) -> bool:
        """Return whether a record was made with this idempotency key of the tenant."""

    async def replace(self, job: Job) -> bool:
        """Replace the version before this one; False: there is another by now, or none, and nothing is changed."""

    async def note_charged(self, jobs: Sequence[Job]) -> None:
        """Bring these versions of ended records to what `transitions.charged` makes of them; those that are others by now stay."""

    async def claim(self, ids: Sequence[str], step: Callable[[Job], Job], *, most: int) -> list[Job]:
        """Bring the first `most` of these jobs for which that can be done to the version that `step` makes, and return them.

        `step` may run on another thread. A job that is gone, was changed meanwhile, or of which it raises WrongState, is
        passed over.
        """

    async def remove(self, job: Job) -> bool:
        """Remove this version; False: there is another by now."""

    async def waiting(self, now_s: float, *, heads: int = HEADS) -> list[TenantQueue]:
        """Return the first jobs of each tenant that may be claimed now, so many of each."""

    async def ready(self, now_s: float, *, limit: int) -> int:
        """Return how many jobs may be claimed now, or `limit` if there are more."""

    async def neglected(self, now_s: float, *, limit: int) -> list[Job]:
        """Return jobs whose `look_at_s` has come, the longest first."""

    async def surplus(self, kept: JobTotals, *, limit: int) -> list[Job]:
        """Return the oldest ended jobs of each tenant that keeps more than that, as many as are too many."""

    async def place(self, job: Job) -> int:
        """Return how many queued jobs of its tenant come before this one, as far as `MOST_PLACES`."""

    async def jobs_of(self, tenant: str | None, *, state: JobState | None, before: str, limit: int) -> list[Job]:
        """Return a tenant's jobs (None: everybody's), the newest first, from the one after the id `before` on."""

    async def load(self, tenant: str) -> tuple[JobTotals, JobTotals]:
        """Return what the tenant has open, and what all have."""

    async def backlog(self) -> Backlog:
        """Return what all tenants have open or dead, at a cost that hardly grows with it."""

    async def close(self) -> None: ...


class JobsFull(Exception):
    """There is no room for another open job; `of_tenant` says whose bound it is."""

    def __init__(self, *, of_tenant: bool, load: JobTotals) -> None:
        super().__init__()
        self.of_tenant = of_tenant
        self.load = load


class Ticket(Protocol):
    """Message of the queue, taken and not yet acknowledged. What is said of it takes a few seconds at most."""

    def claimed(self) -> None:
        """Note that a job was claimed for it, which the store no longer counts as ready."""

    async def ack(self) -> None:
        """End it: a job was done for it, or there was none to do."""

    async def give_back(self) -> None:
        """Let another runner take it, now."""


class JobQueue(Protocol):
    """Queue of tickets. A ticket names no job; one that is lost is written anew (`jobs/sweeper`)."""

    async def publish(self, count: int = 1) -> None:
        """Put tickets on the queue; when it returns they are there for certain. Raises StoreUnavailable."""

    async def take(self, most: int = 1) -> Sequence[Ticket]:
        """Wait for a ticket, through outages; return it with those that are there besides, `most` in all."""

    async def depth(self) -> int:
        """Return how many tickets nobody has taken. Raises StoreUnavailable."""

    async def run(self) -> None:
        """Keep the connection to the broker, until cancelled; return if there is none to keep."""

    async def close(self) -> None: ...


class BlobReader(Protocol):
    """A stored file, of the spool or of a shelf, that is read piece by piece; it must be closed in any case."""

    async def receive(self) -> bytes | None:
        """Return the next piece, None at the end. Raises StoreUnavailable."""

    def close(self) -> None: ...


class Spool(Protocol):
    """Durable store of request bodies and results, in a folder for each job. Raises StoreUnavailable."""

    async def write(self, job_id: str, name: str, pieces: Sequence[bytes | bytearray], *, is_new: bool = False) -> Blob:
        """Write a file whole, durably, before returning; one that `is_new` work leaves room for the results of what was accepted."""

    async def receive(self, job_id: str, name: str, pieces: AsyncIterator[bytes | bytearray]) -> Blob:
        """Write a file of new work as its pieces come, durably before returning; where one cannot come, nothing is left of it."""

    async def read(self, blob: Blob) -> bytes:
        """Return a file's bytes, or those that the record carries. Raises SpoolDamaged: it is gone, or is not what was
        written.
        """

    async def open(self, blob: Blob) -> BlobReader:
        """Return a file of the spool to be received piece by piece. Raises SpoolDamaged, before its first piece."""

    async def prune(self, job_id: str, *, keep: str = "") -> None:
        """Remove a job's files, but not the one of the blob `keep`. Idempotent."""

    async def parts(self) -> list[str]:
        """Return the parts of the spool, each with some of the jobs that have files."""

    async def jobs(self, part: str, *, before_s: float) -> list[str]:
        """Return the ids of jobs in a part that have files, none of them written after `before_s`."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class JobBackend:
    """Backend of jobs: their records, their tickets, and the files of those that are large."""

    store: JobStore
    queue: JobQueue
    spool: Spool


class SpoolDamaged(Exception):
    """A file of the spool is gone or is not what was written."""


@dataclass(frozen=True, slots=True)
class Computed:
    """Answer of an attempt, and the usage that it amounts to."""

    answer: HttpAnswer
    model: str
    usage: Usage | None
    failed_lines: int = 0
    seconds: float | None = None
    """How long servers worked on the job, without the time that it waited before; None where that is not known."""


class Compute(Protocol):
    """Computes jobs by the inference service that everybody uses."""

    def room_for(self, size_bytes: int) -> AbstractAsyncContextManager[None]:
        """Hold memory for a body of this size within the block. Raises TryAgain: there is none now."""

    async def compute(self, job: Job, body: bytes) -> Computed:
        """Compute an attempt; an error that would be met again is an answer.

        Raises TryAgain: it may succeed later.
        """

    def is_hot(self, model: str) -> bool:
        """Whether the model or route can be computed without a load."""


class TryAgain(Exception):
    """An attempt was not answered and may succeed later: after `retry_after_s`, where that is known.

    `was_computed` says whether it may have reached a model, so that it counts as an attempt.
    """

    def __init__(self, message: str, *, was_computed: bool, retry_after_s: float | None = None, is_crowded: bool = False) -> None:
        super().__init__(message)
        self.was_computed = was_computed
        self.retry_after_s = retry_after_s
        self.is_crowded = is_crowded


class UsageSums(Protocol):
    """Store of usage that takes a batch once, however often it is sent; `metering/ports.UsageStore` is one."""

    async def add_all(self, batches: Sequence[UsageBatch]) -> None: ...
