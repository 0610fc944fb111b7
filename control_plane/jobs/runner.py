"""Runner of jobs: takes tickets, claims the best jobs for them, computes them, and finishes them.

Claim -> compute -> a large result to the spool -> one compare-and-swap that ends the job -> acknowledge -> charge. As many
jobs are claimed, and charged, at once as there are. A runner that dies between any two of these leaves a record from
which another goes on: an ended lease is a failed attempt, a result that no record names is no result, a charge that was
not noted is sent again and recognised.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.errors import DEFECT_TEXT, StoreUnavailable
from control_plane.jobs.blobs import keep
from control_plane.jobs.charging import Charger
from control_plane.jobs.claim_watch import Claim, ClaimWatch
from control_plane.jobs.domain.claims import HEADS, are_too_few, more_heads, rank
from control_plane.jobs.domain.gate import BulkGate
from control_plane.jobs.domain.job import Blob, Charge, Job, JobState, Result
from control_plane.jobs.domain.transitions import RetryPolicy, attempt_failed, broken, claimed, finished, released
from control_plane.jobs.ports import Compute, Computed, JobBackend, SpoolDamaged, Ticket, TryAgain, UsageSums
from control_plane.jobs.pruning import Pruner
from control_plane.metering.domain.usage import day_of

_log = logging.getLogger(__name__)

_CLAIMS = 4
"""Jobs that are tried to be claimed for a ticket; with as many lost to other runners, those have the tickets for more."""
_EMPTY_PAUSE_S = 0.1
_GATHER_S = 0.003
"""Time from the end of a job, where there was no room for another, to the next claims, for more to end."""
_RETRY_S = 0.5
_UNREADABLE_S = 5.0
"""Delay of a job whose body cannot be read."""
_RELEASE_TIMEOUT_S = 2.0

Step = Callable[[Job], Job]


class JobRunner:
    """Runner of jobs in this process; `run` runs it."""

    def __init__(
        self,
        backend: JobBackend,
        *,
        compute: Compute,
        usage: UsageSums,
        gate: BulkGate,
        holder: str,
        policy: RetryPolicy,
        weight_of: Callable[[str], float] = lambda tenant: 1.0,
        on_result: Callable[[Job], None] = lambda job: None,
        on_ended: Callable[[Job], None] = lambda job: None,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`holder` names this runner, `weight_of` says a tenant's share. `on_result` is told of each job that has a result,
        `on_ended` of each that is over, with a result or without. `today_s` is seconds since 1970.
        """
        self._store, self._queue, self._spool = backend.store, backend.queue, backend.spool
        self._compute = compute
        self._charger = Charger(store=self._store, usage=usage)
        self._pruner = Pruner(self._spool, today_s=today_s)
        self._watch = ClaimWatch(self._store, policy, today_s)
        self._gate = gate
        self._holder = holder
        self._policy = policy
        self._weight_of = weight_of
        self._on_result, self._on_ended = on_result, on_ended
        self._today_s = today_s
        self._running: set[asyncio.Task[None]] = set()
        self._job_ended = Broadcast()
        self._claiming: asyncio.Task[None] | None = None
        self._is_draining = False

    @property
    def running(self) -> int:
        """Jobs that this runner computes, or is about to claim."""
        return len(self._running)

    async def run(self) -> None:
        """Run jobs until cancelled; what is being computed then goes back to the queue, and does not count."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._charger.run(), name="job-charges")
            tasks.create_task(self._pruner.run(), name="job-bodies")
            tasks.create_task(self._watch.run(), name="job-watch")
            self._claiming = tasks.create_task(self._take(tasks), name="job-tickets")
            if self._is_draining:
                self._claiming.cancel()

    async def drain(self, timeout_s: float) -> None:
        """Claim no more, let what runs end for at most `timeout_s`, and give the rest back to the queue."""
        self._is_draining = True
        if self._claiming is not None:
            self._claiming.cancel()
        until_s = time.monotonic() + timeout_s
        while self._running and (left_s := until_s - time.monotonic()) > 0:  # those that were about to be claimed come on top
            await asyncio.wait(list(self._running), timeout=left_s)
        left = list(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=2 * _RELEASE_TIMEOUT_S)
        await self._charger.settle(_RELEASE_TIMEOUT_S)

    async def _take(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            if self._gate.pause_s:
                await asyncio.sleep(self._gate.pause_s)
            while (room := self._gate.slots - len(self._running)) <= 0:
                await self._job_ended.wait()
                await asyncio.sleep(_GATHER_S)
            tickets = await self._queue.take(room)
            # In a task of its own: what is being claimed while a drain begins is not left to its lease.
            begun = self._start(self._begin(tickets, tasks), tasks, name="job-claims")
            await asyncio.wait((begun,))

    def _start(self, work: Coroutine[None, None, None], tasks: asyncio.TaskGroup, *, name: str) -> asyncio.Task[None]:
        task = tasks.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._job_ended.wake()

    async def _begin(self, tickets: Sequence[Ticket], tasks: asyncio.TaskGroup) -> None:
        """Claim a job for each of the tickets and begin it; acknowledge those for which there is none."""
        left, is_done = list(tickets), False
        try:
            for job in await self._claim(len(tickets)):
                ticket = left.pop()
                ticket.claimed()
                self._start(self._work(ticket, job), tasks, name="job")
            is_done = True
            if len(left) == len(tickets):
                await asyncio.sleep(_EMPTY_PAUSE_S)  # others have the jobs that are ready
        except StoreUnavailable as exc:
            _log.warning("no job can be claimed: %s", exc)
            await asyncio.sleep(_RETRY_S)
        except Exception:
            _log.exception("no job can be claimed; this is a defect")
            await asyncio.sleep(_RETRY_S)
        finally:
            for ticket in left:
                await _end(ticket, is_done=is_done)

    async def _claim(self, most: int) -> list[Job]:
        now_s = self._today_s()
        heads, is_hot = max(HEADS, most), self._compute.is_hot
        waiting = await self._store.waiting(now_s, heads=heads)
        if are_too_few(waiting, heads=heads, is_hot=is_hot) and (more := more_heads(len(waiting))) > heads:
            waiting = await self._store.waiting(now_s, heads=more)
        ranked = rank(waiting, now_s=now_s, is_hot=is_hot, weight_of=self._weight_of)
        return await self._store.claim(
            ranked[: most * _CLAIMS], lambda job: claimed(job, holder=self._holder, now_s=now_s, policy=self._policy), most=most
        )

    async def _work(self, ticket: Ticket, job: Job) -> None:
        """Do what one ticket is for; it is acknowledged once nothing is left to do for it."""
        is_done = False
        try:
            is_done = await self._attempt(job)
        except StoreUnavailable as exc:
            _log.warning("a job is left to the sweeper: %s", exc)
            await asyncio.sleep(_RETRY_S)
        except Exception:
            _log.exception("a job failed in the gateway; this is a defect")
        finally:
            await _end(ticket, is_done=is_done)

    async def _attempt(self, job: Job) -> bool:
        """Compute a claimed job and bring it to its next state; False: another runner should go on with it now."""
        claim = Claim(job)
        try:
            with self._watch.over(claim):
                computed = await self._computed(job)
                blob = await self._kept(job, computed)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if claim.is_lost and task is not None and task.uncancel() == 0:
                _log.info("job %s was taken from this runner", job.id)
                return True
            with suppress(StoreUnavailable, TimeoutError):
                release = self._change(claim.job, lambda job: released(job, now_s=self._today_s()))
                await asyncio.wait_for(release, _RELEASE_TIMEOUT_S)
            raise
        except Exception as exc:
            await self._failed(claim.job, exc)
        else:
            await self._finish(claim.job, computed, blob)
        return True

    async def _computed(self, job: Job) -> Computed:
        async with self._compute.room_for(job.body.size_bytes):
            computed = await self._compute.compute(job, await self._spool.read(job.body))
        usage, seconds = computed.usage, computed.seconds
        if usage is not None and usage.requests and not usage.cache_hits and seconds is not None:
            self._gate.ended(job.model, seconds=seconds, rows=usage.rows, now_s=time.monotonic())
        return computed

    async def _failed(self, job: Job, cause: Exception) -> None:
        """Bring a job whose attempt has failed to its next state."""
        now_s = self._today_s()
        match cause:
            case TryAgain():
                await self._change(job, lambda job: self._again(job, cause))
            case SpoolDamaged():
                await self._change(job, lambda job: broken(job, error=str(cause), now_s=now_s, policy=self._policy))
            case StoreUnavailable():  # its body cannot be read now: a disk of other machines may be away
                await self._change(job, lambda job: released(job, now_s=now_s, delay_s=_UNREADABLE_S, error=str(cause)))
            case _:
                _log.error("job %s failed in the gateway; this is a defect", job.id, exc_info=cause)
                await self._change(job, lambda job: attempt_failed(job, error=DEFECT_TEXT, now_s=now_s, policy=self._policy))

    def _again(self, job: Job, why: TryAgain) -> Job:
        now_s, delay_s = self._today_s(), self._policy.first_delay_s if why.retry_after_s is None else why.retry_after_s
        if why.is_crowded:
            self._gate.refused(time.monotonic())
        if why.was_computed:
            return attempt_failed(job, error=str(why), now_s=now_s, policy=self._policy)
        return released(job, now_s=now_s, delay_s=delay_s, error=str(why))

    async def _kept(self, job: Job, computed: Computed) -> Blob:
        """Keep a result. While the spool takes none, since its disk is full or away, it waits here until the job's deadline: another
        attempt would meet the same. Raises TryAgain."""
        answer, is_told = computed.answer, False
        while True:
            try:
                pieces = [answer.head, answer.body]
                return await keep(pieces, job_id=job.id, name=f"result-{job.fence}", store=self._store, spool=self._spool)
            except StoreUnavailable as exc:
                if self._today_s() >= job.deadline_s:
                    raise TryAgain(str(exc), was_computed=True) from exc
                if not is_told:
                    _log.warning("the result of job %s waits in memory: %s", job.id, exc)
                is_told = True
            await asyncio.sleep(_RETRY_S)

    async def _finish(self, job: Job, computed: Computed, blob: Blob) -> None:
        """End the job by one compare-and-swap, and have it charged."""
        answer = computed.answer
        result = Result(blob, answer.status, len(answer.head), computed.failed_lines)
        now_s = self._today_s()
        due = None if computed.usage is None else Charge(day_of(now_s), computed.model, computed.usage)
        ended = await self._change(job, lambda job: finished(job, result, due, now_s=now_s, policy=self._policy))
        if ended is None:
            _log.info("the result of job %s is dropped: the job was taken from this runner", job.id)
            return
        if ended.has_files:
            body_bytes = job.body.size_bytes if job.body.data is None else 0
            self._pruner.put(job.id, tenant=job.tenant, keep=blob.name if blob.data is None else "", size_bytes=body_bytes)
        self._charger.put(ended)
        self._on_result(ended)

    async def _change(self, job: Job, step: Step) -> Job | None:
        """Bring a job that this runner holds to its next version, through outages, until its deadline; None: the claim is lost."""
        while True:
            new = step(job)
            try:
                if await self._store.replace(new):
                    self._notify(new)
                    return new
                found = await self._store.get(job.id)
            except StoreUnavailable:
                if self._today_s() >= job.deadline_s:
                    raise
                await asyncio.sleep(_RETRY_S)
                continue
            if found == new:  # an earlier try, whose answer did not come, has done it
                self._notify(new)
                return new
            if found is None or found.fence != job.fence or found.state is not JobState.RUNNING:
                return None
            job = found  # renewed in the meantime

    def _notify(self, job: Job) -> None:
        if not job.is_open:
            self._on_ended(job)


async def _end(ticket: Ticket, *, is_done: bool) -> None:
    with suppress(StoreUnavailable):
        await (ticket.ack() if is_done else ticket.give_back())
