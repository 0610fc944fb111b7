"""Jobs as their callers see them: submitted, looked at, waited for, cancelled; called by `frontends/jobs`.

A caller sees the jobs of its own tenant for models that it may call, and no others exist for it. An accepted job is
one whose body and record are on disk: what follows can be lost and is made good by the sweeper.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from math import inf
from typing import TypeVar
from uuid import uuid4

from control_plane.core.errors import Conflict, IdempotencyKeyReused, LimitExceeded, ModelNotFound, ObjectNotFound, StoreUnavailable
from control_plane.core.principal import Principal
from control_plane.core.visible_items import visible_items
from control_plane.jobs.blobs import keep
from control_plane.jobs.domain.delivery import Delivery
from control_plane.jobs.domain.job import Blob, Job, JobState, PriceClass, Result, due_s_of
from control_plane.jobs.domain.transitions import RetryPolicy, cancelled, requeued
from control_plane.jobs.ports import BlobReader, Bounds, JobBackend, JobsFull, SpoolDamaged
from control_plane.jobs.room import JobRoom
from control_plane.jobs.upload_slots import UploadSlots
from control_plane.protocols.http1 import BodyPieces

ReadT = TypeVar("ReadT")

_log = logging.getLogger(__name__)

JOB_ID = re.compile(r"job-[0-9a-f]{32}")
_FIRST_LOOK_S, _LAST_LOOK_S = 0.02, 0.5
_ANSWERED_S = 1.0
"""Time before the end of a drain in which callers that still wait are told how their jobs stand: cut off with the rest, who has just
handed one in would take it for refused."""
_LOOKS_PER_S = 1000
"""Most looks at the store for the callers of one tenant that wait: of more callers each looks less often."""
_TICKET_S = 0.5
"""Longest wait of a caller for his job's ticket: a broker whose memory or disk is full takes none for minutes, and does not say so."""

_LISTED_AT_ONCE = 100
"""Records of a list that are read at a time: each may carry a body and a result, and whoever changes a job waits meanwhile."""

RequireModel = Callable[[str], Awaitable[None]]
"""Requires that there is a model or route of that name, loaded or not. Raises ModelNotFound."""


@dataclass(frozen=True, slots=True)
class Submission:
    """Submission of a job, as its caller makes it: a request, and how."""

    model: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | bytearray
    """The whole body, or the beginning of a large one."""
    rest: BodyPieces | None = None
    """Pieces of a large body after its beginning, as they arrive."""
    announced_bytes: int = 0
    """Size of a large body, where the caller has said it."""
    price_class: PriceClass = PriceClass.STANDARD
    expires_s: float | None = None
    """Seconds from now; None: as the settings say."""
    idempotency_key: str = ""
    fingerprint: str = ""
    """Digest of what it asks for beside its body, where it has a key."""
    output: Delivery | None = None
    """Where the result is written to."""
    webhook: Delivery | None = None
    """The webhook that tells a receiver of the job's end."""


class Jobs:
    """Application service for jobs, of one process."""

    def __init__(
        self,
        backend: JobBackend,
        *,
        bounds: Bounds,
        policy: RetryPolicy,
        expire_s: float,
        slots: UploadSlots | None = None,
        on_ended: Callable[[Job], None] = lambda job: None,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`expire_s` is how long a job has that says nothing about it; `slots` are shared with what else receives large
        bodies; `on_ended` is told of each job that a caller has cancelled; `today_s` is seconds since 1970.
        """
        self._store, self._queue, self._spool = backend.store, backend.queue, backend.spool
        self._bounds = bounds
        self.room = JobRoom(self._store, bounds, today_s=today_s)
        self._policy = policy
        self._expire_s = expire_s
        self._on_ended = on_ended
        self._today_s = today_s
        self._being_accepted: set[tuple[str, str]] = set()
        self._slots = slots or UploadSlots()
        self._waiting: Counter[str] = Counter()
        """Callers of each tenant that wait for a job."""
        self.is_draining = False
        """Whether this process ends, so that those who wait should go elsewhere."""
        self._waits_end_s = inf
        """When those who wait are answered at the latest, in the loop's time."""
        self.require_model: RequireModel | None = None
        """Refuses a job for a model that there is not; None: that shows when it is computed."""

    async def submit(self, principal: Principal, wanted: Submission) -> Job:
        """Accept a job, or return the one that its idempotency key has made before.

        Raises:
            LimitExceeded: too many jobs are open, or too many bytes of them, or too many large bodies are sent at a time.
            Overloaded: all tenants together send too many.
            Conflict: another request with this idempotency key is being accepted.
            IdempotencyKeyReused: the idempotency key came before with another request.
            ModelNotFound: nobody knows such a model.
            StoreUnavailable: nothing can be accepted now.
            ControlPlaneError: the rest of its body does not come.
        """
        if self.require_model is not None:
            try:
                await self.require_model(wanted.model)
            except ModelNotFound:
                if not await self._knows_key(principal.tenant, wanted.idempotency_key):
                    raise
        size_bytes = max(len(wanted.body), wanted.announced_bytes)
        if size_bytes > self._store.carries_bytes:
            await self.require_room(principal, size_bytes, idempotency_key=wanted.idempotency_key)
        key = principal.tenant, wanted.idempotency_key
        if wanted.idempotency_key and key in self._being_accepted:
            raise Conflict("a request with this Idempotency-Key is being accepted now; ask again shortly")
        self._being_accepted.add(key)
        try:
            return await self._accept(principal, wanted)
        finally:
            self._being_accepted.discard(key)

    async def get(self, principal: Principal, job_id: str) -> Job:
        """Return a job. Raises ObjectNotFound, StoreUnavailable."""
        job = await self._store.get(job_id) if JOB_ID.fullmatch(job_id) else None
        if job is None or not _may_see(principal, job):
            raise ObjectNotFound(f"there is no job {job_id!r}; one that has ended is kept for {self._policy.keep_s:g} s at most")
        return job

    async def place(self, job: Job) -> int | None:
        """Return how many jobs of its tenant come before a queued one; None once it is claimed."""
        return await self._store.place(job) if job.state is JobState.QUEUED else None

    async def visible_to(self, principal: Principal, *, state: JobState | None, before: str, limit: int) -> list[Job]:
        """Return jobs that a caller may see, the newest first, from the one after `before` on. Raises Conflict: the
        tenant has no such job, or no more, and so the list has no place after it."""
        if before and ((last := await self._store.get(before)) is None or last.tenant != principal.tenant):
            raise Conflict("the job that the list before ended with is gone, and with it the place where this one begins; list anew")

        def read(before: str, limit: int) -> Awaitable[list[Job]]:
            return self._store.jobs_of(principal.tenant, state=state, before=before, limit=limit)

        return await visible_items(read, lambda job: _may_see(principal, job), after=before, limit=limit, at_once=_LISTED_AT_ONCE)

    async def jobs_of(self, tenant: str | None, *, state: JobState | None, before: str, limit: int) -> list[Job]:
        """Return a tenant's jobs (None: everybody's), the newest first, from the one after `before` on."""
        return await self._store.jobs_of(tenant, state=state, before=before, limit=limit)

    async def is_known(self, job_id: str) -> bool:
        """Whether there is such a job, of any tenant."""
        return await self._store.get(job_id) is not None

    async def wait(self, job: Job, timeout_s: float) -> Job:
        """Wait until a job has ended, for at most `timeout_s`; return it as it is then, as far as the store said meanwhile. While this
        process drains, jobs that no runner has are not waited for."""
        loop, tenant = asyncio.get_running_loop(), job.tenant
        until_s, pause_s = loop.time() + timeout_s, _FIRST_LOOK_S
        self._waiting[tenant] += 1
        try:
            while job.is_open and (left_s := min(until_s, self._waits_end_s) - loop.time()) > 0:
                if self.is_draining and job.state is JobState.QUEUED:
                    break
                await asyncio.sleep(min(max(pause_s, self._waiting[tenant] / _LOOKS_PER_S), left_s))
                pause_s = min(2 * pause_s, _LAST_LOOK_S)
                with suppress(StoreUnavailable):
                    job = await self._store.get(job.id) or job
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]
        return job

    def drain(self, timeout_s: float) -> None:
        """Hold up the end of this process, which is in `timeout_s`, by no waiting caller whose job has not begun; answer the others
        before it."""
        self.is_draining = True
        self._waits_end_s = min(self._waits_end_s, asyncio.get_running_loop().time() + timeout_s - _ANSWERED_S)

    async def result(self, job: Job) -> bytes:
        """Return the answer of a job, head and body.

        Raises Conflict: it has none, or none yet, or it is in the files of a batch. StoreUnavailable.
        """
        return await _undamaged(job, self._spool.read(_result_of(job).blob))

    async def open_result(self, job: Job) -> BlobReader:
        """Return the answer of a job, one in the spool, to be received piece by piece and closed. Raises as `result` does."""
        return await _undamaged(job, self._spool.open(_result_of(job).blob))

    async def cancel(self, principal: Principal, job_id: str) -> Job:
        """Cancel a job, also while it runs; one that has ended stays as it is. Raises ObjectNotFound."""
        while True:
            job = await self.get(principal, job_id)
            if not job.is_open:
                return job
            new = cancelled(job, now_s=self._today_s(), policy=self._policy)
            if await self._store.replace(new):
                self._on_ended(new)
                await self._discard(new)
                return new

    async def requeue(self, job_id: str) -> Job:
        """Queue a dead job of any tenant anew. Raises ObjectNotFound, Conflict: it is not dead."""
        new = requeued(await self._dead(job_id), now_s=self._today_s())
        if not await self._store.replace(new):
            raise Conflict(f"job {job_id} was changed by somebody else meanwhile")
        await self._publish()
        return new

    async def drop(self, job_id: str) -> None:
        """Remove a dead job of any tenant, with its body. Raises as `requeue` does."""
        job = await self._dead(job_id)
        if not await self._store.remove(job):
            raise Conflict(f"job {job_id} was changed by somebody else meanwhile")
        await self._discard(job)

    async def _dead(self, job_id: str) -> Job:
        job = await self._store.get(job_id)
        if job is None:
            raise ObjectNotFound(f"there is no job {job_id!r}")
        if job.state is not JobState.DEAD:
            raise Conflict(f"job {job_id} is {job.state}, not dead")
        return job

    async def require_room(self, principal: Principal, size_bytes: int, *, idempotency_key: str) -> None:
        """Refuse a body of this size before it is read, unless its job is there already. Raises LimitExceeded."""
        try:
            await self.room.require(principal.tenant, size_bytes)
        except LimitExceeded:
            if not await self._knows_key(principal.tenant, idempotency_key):
                raise

    async def _knows_key(self, tenant: str, idempotency_key: str) -> bool:
        """Whether a job was made with this key, if it is one."""
        return bool(idempotency_key) and await self._store.knows_key(tenant, idempotency_key)

    async def _accept(self, principal: Principal, wanted: Submission) -> Job:
        # By time: what jobs that come together change in indexes lies together.
        job_id = f"job-{int(self._today_s() * 1e3):012x}{uuid4().hex[:20]}"
        body = await self._keep(job_id, principal.tenant, wanted)
        job = self._record(job_id, principal, wanted, body)
        try:
            held = await self._store.add(job, self._bounds)
        except JobsFull as exc:
            await self._discard(job)
            raise self.room.full(principal.tenant, exc.load, of_tenant=exc.of_tenant) from exc
        if held.id != job_id:
            await self._discard(job)
            if not _is_same_request(held, job):
                raise IdempotencyKeyReused("this Idempotency-Key came before with another request; use a new key for a new request")
            return held
        await self._publish()
        return held

    async def _keep(self, job_id: str, tenant: str, wanted: Submission) -> Blob:
        """Keep a small body for the record, and write another to the spool; a large one as it arrives."""
        if wanted.rest is not None:
            with self._slots.take(tenant):
                is_known = await self._knows_key(tenant, wanted.idempotency_key)
                # Closed here: by itself what it counts would be given back some time after a disk has failed.
                async with aclosing(self.room.bounded(tenant, wanted.body, wanted.rest, is_known=is_known)) as pieces:
                    return await self._spool.receive(job_id, "body", pieces)
        return await keep([wanted.body], job_id=job_id, name="body", store=self._store, spool=self._spool, is_new=True)

    async def _discard(self, job: Job) -> None:
        if job.has_files:
            await self._spool.prune(job.id)

    def _record(self, job_id: str, principal: Principal, wanted: Submission, body: Blob) -> Job:
        now_s = self._today_s()
        deadline_s = now_s + (self._expire_s if wanted.expires_s is None else wanted.expires_s)
        return Job(
            id=job_id,
            tenant=principal.tenant,
            key_id=principal.key_id,
            scopes=tuple(map(str, principal.scopes.scopes)),
            model=wanted.model,
            target=wanted.target,
            headers=wanted.headers,
            body=body,
            submitted_s=now_s,
            due_s=due_s_of(wanted.price_class, submitted_s=now_s, deadline_s=deadline_s),
            deadline_s=deadline_s,
            price_class=wanted.price_class,
            idempotency_key=wanted.idempotency_key,
            fingerprint=wanted.fingerprint,
            output=wanted.output,
            webhook=wanted.webhook,
        )

    async def _publish(self) -> None:
        """Write a ticket; where the broker is away, the sweeper does it later: the job is accepted all the same."""
        try:
            async with asyncio.timeout(_TICKET_S):
                await self._queue.publish()
        except (StoreUnavailable, TimeoutError) as exc:
            _log.warning("no ticket could be written for a job; the sweeper will: %s", str(exc) or f"no answer within {_TICKET_S:g} s")


def _result_of(job: Job) -> Result:
    if job.result is None:
        raise Conflict(f"job {job.id} is {job.state}" + (f" ({job.error})" if job.error else "") + " and has no result")
    return job.result


async def _undamaged(job: Job, reading: Awaitable[ReadT]) -> ReadT:
    try:
        return await reading
    except SpoolDamaged as exc:
        if job.is_of_batch:
            raise Conflict(f"job {job.id} is a part of a batch, whose output and error files have its answers once it has ended") from exc
        raise StoreUnavailable(str(exc)) from exc


def _is_same_request(held: Job, job: Job) -> bool:
    """Whether a job is what its idempotency key was first used for. Of one that an earlier version has accepted, or a chunk of a
    batch, there is no fingerprint."""
    return _request_of(held) == _request_of(job) and held.fingerprint in ("", job.fingerprint)


def _request_of(job: Job) -> tuple[str, ...]:
    """What a request with the same idempotency key has to ask for as well."""
    return (job.body.sha256, job.target, *("" if each is None else each.url for each in (job.output, job.webhook)))


def _may_see(principal: Principal, job: Job) -> bool:
    """Whether a job is the caller's tenant's, and for a model that the caller may call."""
    return job.tenant == principal.tenant and principal.scopes.allow_inference(job.model)
