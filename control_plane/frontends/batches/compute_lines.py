"""Computes a chunk of a batch: each line as the call of `/v1/embeddings` that it is; called by `frontends/jobs/compute`.

While no callers are present, lines are computed together as one call, at a fraction of the cost. Beside callers they are computed
one by one, since a request that arrives waits for whatever a server has begun.

A permanent error is the line's answer. A transient error fails the whole chunk, which is tried again, so that a chunk's result is
complete or absent. In the last attempt it is the line's answer too: one line that kills its server must not fail the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from control_plane.batches.domain.batch import EMBEDDINGS
from control_plane.batches.domain.input_lines import Line, lines_of
from control_plane.batches.domain.output_lines import answered_line
from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import UNKNOWN_MODEL
from control_plane.core.principal import Principal
from control_plane.embeddings.domain.openai_request import answer_steps
from control_plane.embeddings.embeddings import Embeddings
from control_plane.frontends.batches.joint_lines import JointCall, JointLines, joint_steps
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.common.status import STATUS
from control_plane.frontends.jobs.attempt_errors import try_again_after
from control_plane.frontends.jobs.job_meter import JobMeter
from control_plane.frontends.jobs.yielding import Yielding
from control_plane.frontends.openai import HttpEmbeddingsCall
from control_plane.inference.governance import Meter
from control_plane.jobs.domain.job import Job
from control_plane.jobs.ports import Computed, TryAgain
from control_plane.metering.domain.usage import Usage
from control_plane.protocols.http1 import HttpRequest, make_answer

_AT_ONCE = 16
"""Lines of a chunk that are computed at a time, so that Triton can batch them."""


class LinesCompute:
    """Computes chunks of batches by this process's embeddings service."""

    def __init__(
        self,
        embeddings_with: Callable[[Meter, bool], Embeddings],
        meter: Meter,
        *,
        max_attempts: int,
        is_alone: Callable[[], bool],
        yielding: Yielding,
        may_join: Callable[[str, str], bool],
    ) -> None:
        """`embeddings_with` makes the embeddings service that counts by the given meter, and is told whether models may
        interrupt it for callers, as `yielding` says. `is_alone` says whether there is nobody to yield to,
        `may_join` whether a tenant's lines for a model may be one request.
        """
        self._is_alone = is_alone
        self._yielding = yielding
        self._may_join = may_join
        self._embeddings_with = embeddings_with
        self._meter = meter
        self._max_attempts = max_attempts

    async def compute(self, job: Job, principal: Principal, body: bytes) -> Computed:
        """Compute an attempt at a chunk. Raises TryAgain."""
        lines, numbers = await run_in_steps(lines_of(body)), count()
        done: list[_Done | None] = [None] * len(lines)
        groups = await run_in_steps(joint_steps(lines)) if self._are_joined(job) else []
        is_last, began_s = job.attempts >= self._max_attempts, asyncio.get_running_loop().time()
        was_alone = self._is_alone()

        async def join(group: JointLines, tasks: asyncio.TaskGroup) -> None:
            for number, each in await self._joint(job, principal, group, lines, tasks):
                done[number] = each

        async def work(tasks: asyncio.TaskGroup) -> None:
            for number in numbers:
                if number >= len(lines):
                    return
                if done[number] is not None:
                    continue
                done[number] = await self._line(job, principal, number, lines[number], tasks, is_last=is_last)

        try:
            # Two groups: the tasks of the first are ended by themselves, those of the second end with their caller.
            async with asyncio.TaskGroup() as flights, asyncio.TaskGroup() as tasks:
                for group in groups:
                    tasks.create_task(join(group, flights), name="batch-joint-lines")
            async with asyncio.TaskGroup() as flights, asyncio.TaskGroup() as tasks:
                for worker in range(1 if is_last else _AT_ONCE):
                    tasks.create_task(work(flights), name=f"batch-lines-{worker}")
        except BaseExceptionGroup as failed:
            raise _first(failed) from failed
        # Beside callers the lines have waited for them, too.
        seconds = asyncio.get_running_loop().time() - began_s if was_alone and self._is_alone() else None
        return _whole([each for each in done if each is not None], seconds)

    def _are_joined(self, job: Job) -> bool:
        """Whether lines are computed together: a second attempt finds out which of them ends whoever computes it."""
        return job.attempts <= 1 and self._max_attempts > 1 and self._is_alone() and self._may_join(job.tenant, job.model)

    async def _joint(
        self, job: Job, principal: Principal, group: JointLines, lines: Sequence[Line], tasks: asyncio.TaskGroup
    ) -> list[tuple[int, _Done]]:
        """Compute lines together; none where their error would be met again, so that each is told its own."""
        meter = JobMeter(self._meter)
        yields = self._yielding.yields(job)
        embeddings = self._embeddings_with(meter, yields)
        embeddings.begin(tasks)
        try:
            embedded = await embeddings.embed(JointCall(group, principal))
        except ControlPlaneError as exc:
            if yields:
                self._yielding.failed(exc)
            if STATUS[exc.code].retryable:
                raise try_again_after(exc, was_computed=meter.usage is not None and meter.usage.rows > 0) from exc
            return []
        meters = meter.split(len(group.numbers))
        done = list[tuple[int, _Done]]()
        for (number, wanted, rows), own in zip(group.split(embedded.rows), meters, strict=True):
            answer = await run_in_steps(answer_steps(rows, model=wanted.model, is_base64=wanted.is_base64))
            done.append((number, _Done(answered_line(job.id, number, lines[number].custom_id, 200, answer), True, own)))
        return done

    async def _line(self, job: Job, principal: Principal, number: int, line: Line, tasks: asyncio.TaskGroup, *, is_last: bool) -> _Done:
        meter = JobMeter(self._meter)
        yields = self._yielding.yields(job)
        embeddings = self._embeddings_with(meter, yields)
        embeddings.begin(tasks)
        http = HttpRequest(b"POST", EMBEDDINGS.encode(), [], line.body)
        try:
            embedded = await embeddings.embed(HttpEmbeddingsCall(http, principal))
            wanted = embedded.wanted
            answer = await run_in_steps(answer_steps(embedded.rows, model=wanted.model, is_base64=wanted.is_base64))
            status = 200
        except ControlPlaneError as exc:
            if yields:
                self._yielding.failed(exc)
            was_sent = meter.usage is not None and meter.usage.rows > 0
            if STATUS[exc.code].retryable and not (is_last and was_sent):
                raise try_again_after(exc, was_computed=was_sent) from exc
            rendered = render_error(exc, EMBEDDINGS.encode())
            answer, status = bytes(rendered.body), rendered.status
        return _Done(answered_line(job.id, number, line.custom_id, status, answer), status == 200, meter)


class _Done:
    """A line that was answered."""

    def __init__(self, text: bytes, is_ok: bool, meter: JobMeter) -> None:
        self.text, self.is_ok, self.meter = text, is_ok, meter


def _whole(done: list[_Done], seconds: float | None) -> Computed:
    """Put the answers of a chunk together: those for the output file first."""
    fine, wrong = [each for each in done if each.is_ok], [each for each in done if not each.is_ok]
    usage = sum((each.meter.usage for each in done if each.meter.usage is not None), Usage())
    # The model that was asked, by its own name: the caller's may be a route's, or none that there is any more.
    model = next((each.meter.model for each in fine + wrong if each.meter.model), UNKNOWN_MODEL)
    answer = make_answer(200, b"".join(each.text for each in fine + wrong), content_type=b"application/jsonl")
    return Computed(answer, model, usage, failed_lines=len(wrong), seconds=seconds)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what the chunk has failed with: a defect before anything else, then what counts as an attempt."""
    plain = list[BaseException]()
    for each in group.exceptions:
        plain.append(_first(each) if isinstance(each, BaseExceptionGroup) else each)
    defect = next((each for each in plain if not isinstance(each, TryAgain)), None)
    return defect or next((each for each in plain if isinstance(each, TryAgain) and each.was_computed), plain[0])
