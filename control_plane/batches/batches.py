"""Batches as their callers see them, and what makes them go on; called by `frontends/batches`.

A batch needs no queue of its own: each chunk of lines becomes one job (`chunk_jobs`), and once all of these have ended,
whoever sees it first closes the batch (`closing`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4
from weakref import WeakValueDictionary

from control_plane.batches.answer_room import AnswerRoom, OpenBatch
from control_plane.batches.chunk_jobs import ChunkJobs
from control_plane.batches.closing import Closing
from control_plane.batches.domain.batch import Batch, BatchState, Chunks, Ended
from control_plane.batches.domain.input_lines import InputLines, InputReader
from control_plane.batches.domain.output_lines import chunk_end, never_made
from control_plane.batches.files import Files
from control_plane.batches.ports import Shelf
from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.errors import InvalidRequest, LimitExceeded, ModelNotFound, ObjectNotFound, StoreUnavailable
from control_plane.core.principal import Principal
from control_plane.core.visible_items import visible_items
from control_plane.jobs.domain.job import Job
from control_plane.jobs.domain.transitions import RetryPolicy
from control_plane.jobs.ports import Bounds, JobBackend

_log = logging.getLogger(__name__)

RequireModel = Callable[[Principal, str], Awaitable[None]]
"""Requires that a caller may embed texts by the model of that name. Raises ModelNotFound, InvalidRequest, PermissionDenied."""

WINDOW_S = 86_400.0
"""OpenAI's only completion window, `24h`."""
_PERIOD_S = 0.5
_FEW = 4
"""Open batches of which a look costs little: together they have 512 open jobs at most."""
_REST, _LONGEST_REST_S = 4.0, 10.0
"""Time from one look at all open jobs to the next, in times that it took, and at most: a tenant may have twenty thousand, which
take seconds."""
_AFTER_DEFECT_S = 30.0
_GATHER_S = 0.02
"""Pause between two looks, for more chunks to end."""
_OPEN_CHUNKS = 128
"""Most jobs that a batch has open at a time: enough to keep every runner busy for a period, and no more room in the
spool."""
_AT_ONCE = 4
"""Jobs that are made before runners are told of them, which begin while the next ones are made."""
_GRACE_S = 2.0
"""Time from a cancellation to the end of the batch, where chunks have no job: another process that has not seen it may be
about to make one."""
_CLEAN_EVERY_S = 600.0
_UNFINISHED_S = 3600.0
"""Age from which what was never finished is removed: longer than a request that writes it takes."""
_FULL_RETRY_S = 60.0
"""Batches take minutes: who asks again sooner finds no room."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a batch."""

    state: BatchState
    completed: int
    failed: int
    cancelled_s: float | None
    ended: Ended | None
    waits: bool = False
    """Whether it stands still until its tenant deletes files: there is no room for more answers."""


class Batches:
    """Application service for batches; `run` makes them go on."""

    def __init__(
        self,
        backend: JobBackend,
        *,
        shelf: Shelf,
        files: Files,
        bounds: Bounds,
        policy: RetryPolicy,
        keep_s: float,
        max_open: int,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`keep_s` is how long files and ended batches are kept, `max_open` how many of a tenant's may be open; `today_s` is
        seconds since 1970."""
        self._shelf, self._files = shelf, files
        self._jobs = ChunkJobs(backend, shelf=shelf, bounds=bounds, policy=policy, today_s=today_s)
        self._closing = Closing(backend, shelf=shelf, jobs=self._jobs, today_s=today_s)
        self._room = AnswerRoom(files, today_s)
        self._keep_s = keep_s
        self._max_open = max_open
        self._today_s = today_s
        self._open: dict[str, OpenBatch] = {}
        self._being_created: Counter[str] = Counter()
        """Batches of each tenant whose input is being validated."""
        self._validations: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Lock of each tenant, under which its input files are validated one after the other: each takes megabytes."""
        self._cleaned_s = float("-inf")
        self._is_away = False
        self._wake = asyncio.Event()
        self.require_model: RequireModel | None = None
        """Refuses a caller's batch for a model that it cannot be computed by; None: that shows when it is computed."""

    async def create(self, principal: Principal, input_file_id: str, metadata: dict[str, str] | None, *, webhook: str = "") -> Batch:
        """Validate the input file, and accept the batch; `webhook` is the URL that is told of its end.

        Raises:
            InvalidRequest: a line is wrong, such as one for a model that there is not, or the file's purpose is.
            PermissionDenied: the caller may not call the model.
            ObjectNotFound: there is no such file.
            LimitExceeded: the tenant has as many open batches as it may, or as many files, of which its end makes up to two more.
            StoreUnavailable: nothing can be accepted now.
        """
        count = await self._shelf.open_count(principal.tenant) + self._being_created[principal.tenant]
        if count >= self._max_open:
            raise LimitExceeded(f"{count} batches of this tenant have not ended, and no more may be open", retry_after_s=_FULL_RETRY_S)
        self._being_created[principal.tenant] += 1
        try:
            return await self._create(principal, input_file_id, metadata, webhook)
        finally:
            self._being_created[principal.tenant] -= 1
            self._being_created += Counter()  # drops those without any

    async def _create(self, principal: Principal, input_file_id: str, metadata: dict[str, str] | None, webhook: str) -> Batch:
        file = await self._files.get(principal, input_file_id)
        if file.purpose != "batch":
            raise InvalidRequest(f"the input file's purpose must be 'batch'; this one's is {file.purpose!r}", field="input_file_id")
        await self._files.require_room(principal)
        async with self._validations.setdefault(principal.tenant, asyncio.Lock()):
            lines = await self._validated(principal, input_file_id)
        if self.require_model is not None:
            try:
                await self.require_model(principal, lines.model)
            except (ModelNotFound, InvalidRequest) as exc:
                raise InvalidRequest(f"line 1: {exc}", field="input_file_id") from exc
        now_s = self._today_s()
        batch = Batch(
            id=f"batch_{int(now_s * 1e3):012x}{uuid4().hex[:20]}",  # sorts by time
            tenant=principal.tenant,
            key_id=principal.key_id,
            scopes=tuple(map(str, principal.scopes.scopes)),
            input_file_id=input_file_id,
            model=lines.model,
            chunks=Chunks(lines.chunks),
            metadata=metadata,
            created_s=now_s,
            expires_s=now_s + WINDOW_S,
            webhook=webhook,
        )
        if not await self._shelf.add_batch(batch):
            raise ObjectNotFound(f"the file {input_file_id!r} was deleted meanwhile")
        self._wake.set()
        return batch

    async def _validated(self, principal: Principal, file_id: str) -> InputLines:
        content, reader = await self._files.content(principal, file_id), InputReader()
        try:
            while (piece := await content.receive()) is not None:
                await run_in_steps(reader.feed(piece))
        finally:
            content.close()
        return await run_in_steps(reader.finish())

    async def get(self, principal: Principal, batch_id: str) -> Batch:
        """Return a batch of the caller's tenant. Raises ObjectNotFound."""
        batch = await self._shelf.batch(principal.tenant, batch_id)
        if batch is None or not principal.scopes.allow_inference(batch.model):
            raise ObjectNotFound(f"there is no batch {batch_id[:100]!r}")
        return batch

    async def batches_of(self, principal: Principal, *, after: str, limit: int) -> list[Batch]:
        """Return the tenant's batches for models that the caller may call, the newest first, from the one after `after` on."""

        def read(after: str, limit: int) -> Awaitable[list[Batch]]:
            return self._shelf.batches(principal.tenant, after=after, limit=limit)

        return await visible_items(read, lambda batch: principal.scopes.allow_inference(batch.model), after=after, limit=limit)

    async def cancel(self, principal: Principal, batch_id: str) -> Batch:
        """Cancel a batch; answers that there are stay, and one that has ended stays as it is. Raises ObjectNotFound."""
        batch = await self.get(principal, batch_id)
        if await self._shelf.ended(batch) is None:
            await self._shelf.cancel(batch, now_s=self._today_s())
        return batch

    async def progress(self, batch: Batch) -> Progress:
        """Return how far a batch is."""
        cancelled_s, end = await self._shelf.cancelled_s(batch), await self._shelf.ended(batch)
        if end is not None:
            return Progress(end.state, end.completed, end.failed, cancelled_s, end)
        known = self._open.get(batch.id) or OpenBatch(batch)
        ends = dict(known.ends)
        for number in range(len(batch.chunks)):
            if number not in ends:
                job = await self._jobs.get(batch, number)
                if job is None:
                    break  # jobs are made in order
                found = chunk_end(job, batch.chunks[number].lines)
                if found is not None:
                    ends[number] = found
        state = BatchState.IN_PROGRESS if cancelled_s is None else BatchState.CANCELLING
        completed, failed = sum(end.completed for end in ends.values()), sum(end.failed for end in ends.values())
        return Progress(state, completed, failed, cancelled_s, None, known.waits and cancelled_s is None)

    def answer_bytes(self, tenant: str) -> int:
        """Return the bytes of the answers of a tenant's open batches, as far as this process knows."""
        return self._room.answer_bytes(tenant)

    async def run(self) -> None:
        """Make open batches go on, through outages, until cancelled: at once where this process has made or ended a part of
        one, and twice a second, where few are open, for what others do.
        """
        loop, looked_s, rest_s = asyncio.get_running_loop(), float("-inf"), _PERIOD_S
        while True:
            is_full = (now_s := loop.time()) >= looked_s + rest_s
            looked_s = now_s if is_full else looked_s
            self._wake.clear()
            try:
                await self.advance(is_full=is_full)
                self._is_away = False
                if is_full:
                    # Of few batches a look is short, and what took its time was to make jobs and to write outputs.
                    are_few = 0 < len(self._open) <= _FEW
                    rest_s = _PERIOD_S if are_few else min(max(_PERIOD_S, _REST * (loop.time() - looked_s)), _LONGEST_REST_S)
            except StoreUnavailable as exc:
                if not self._is_away:
                    _log.warning("batches wait: %s", exc)
                self._is_away = True
                await asyncio.sleep(_PERIOD_S)
            except Exception:  # such as a batch on the shelf that cannot be read; it must not end the gateway
                _log.exception("batches wait; this is a defect")
                await asyncio.sleep(_AFTER_DEFECT_S)
            with suppress(TimeoutError):
                # Not `wait_for`, which on Python 3.11 swallows a cancellation that comes just as it is woken.
                async with asyncio.timeout_at(looked_s + rest_s):
                    await self._wake.wait()
            await asyncio.sleep(_GATHER_S)

    def job_ended(self, job: Job) -> None:
        """Note that a job has ended in this process, which may be that of a chunk."""
        batch_id, _, number = job.idempotency_key.partition(" ")
        known = self._open.get(batch_id) if number else None
        if known is None or (end := chunk_end(job, known.batch.chunks[int(number)].lines)) is None:
            return
        known.ends[int(number)] = end
        known.open.discard(int(number))
        if len(known.open) < _OPEN_CHUNKS // 2:
            self._wake.set()

    async def advance(self, *, is_full: bool = True) -> None:
        """Make jobs for batches that have few, and write the output of those that are done; not `is_full`: without a look at
        those that are known to be open. One that cannot go on holds up no other. Raises StoreUnavailable.
        """
        now_s = self._today_s()
        batches = await self._shelf.open_batches()
        self._open = {batch.id: self._open.get(batch.id) or OpenBatch(batch) for batch in batches}
        self._room.begin(self._open)
        failure: StoreUnavailable | None = None
        for batch in batches:
            known = self._open[batch.id]
            if now_s < known.rests_until_s:
                continue
            if is_full:
                known.open.clear()
            try:
                if await self._is_done(batch, known):
                    await self._closing.close(batch, known.ends)
            except StoreUnavailable as exc:
                failure = exc
            except Exception:  # a defect, which one batch must not bring upon all others
                _log.exception("batch %s waits; this is a defect", batch.id)
                known.rests_until_s = now_s + _AFTER_DEFECT_S
        if abs(now_s - self._cleaned_s) >= _CLEAN_EVERY_S:  # also after the clock was set back
            self._cleaned_s = now_s
            await self._shelf.remove_older(now_s - self._keep_s, unfinished_before_s=now_s - _UNFINISHED_S)
            await self._closing.prune()
        if failure is not None:
            raise failure

    async def _is_done(self, batch: Batch, known: OpenBatch) -> bool:
        """Look at the chunks that may have ended since, and make jobs for the next ones; True: all have ended."""
        cancelled_s, made, open_chunks = await self._shelf.cancelled_s(batch), 0, 0
        for number in range(len(batch.chunks)):
            if number in known.ends:
                continue
            if open_chunks >= _OPEN_CHUNKS:
                break
            if number in known.open:
                open_chunks += 1
                continue
            job = await self._jobs.get(batch, number)
            if job is not None:
                await self._look_at(job, number, known, is_cancelled=cancelled_s is not None)
            elif cancelled_s is None and self._today_s() < batch.expires_s:
                if not await self._make(batch, number, known):
                    break
                made += 1
                if made == _AT_ONCE:
                    await self._jobs.publish(made)
                    made = 0
            elif cancelled_s is None or self._today_s() >= cancelled_s + _GRACE_S:
                known.ends[number] = never_made(is_cancelled=cancelled_s is not None)
            else:
                break
            open_chunks += number in known.open
        if made:
            await self._jobs.publish(made)
        return len(known.ends) == len(batch.chunks)

    async def _make(self, batch: Batch, number: int, known: OpenBatch) -> bool:
        """Make the job of a chunk; False: there is no room, or the batch was cancelled meanwhile."""
        if not await self._room.take(known) or await self._shelf.cancelled_s(batch) is not None:
            return False
        if not await self._jobs.make(batch, number):
            return False
        known.open.add(number)
        return True

    async def _look_at(self, job: Job, number: int, known: OpenBatch, *, is_cancelled: bool) -> None:
        """Note whether the job of a chunk has ended, and cancel it if its batch was cancelled."""
        end = chunk_end(job, known.batch.chunks[number].lines)
        if end is not None:
            known.ends[number] = end
            return
        known.open.add(number)
        if is_cancelled:
            await self._jobs.cancel(job)
