"""Computes a job as an infer request; implements `jobs/ports.Compute`.

The request takes the same path as one of `frontends/kserve/http`, so that its answer is the one that the caller would have got.
Two things differ: it yields to all other requests (`Admission.in_background`), and its usage is not counted when it ends but stored
in the job's record, which is charged once however often the job is computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from control_plane.batches.domain.batch import EMBEDDINGS
from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import ControlPlaneError, InvalidRequest, Overloaded, UpstreamUnavailable
from control_plane.core.infer_call import InferCall
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.core.scope import Scopes, parse_scope
from control_plane.frontends.common.body_budget import UNCOUNTED_BYTES, BodyBudget
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.common.status import STATUS
from control_plane.frontends.jobs.attempt_errors import try_again_after
from control_plane.frontends.jobs.job_meter import JobMeter
from control_plane.frontends.jobs.yielding import Yielding
from control_plane.frontends.kserve.http_infer import HttpInferContext, HttpInferRequest, decode
from control_plane.inference.governance import Meter
from control_plane.inference.inference import InferenceService
from control_plane.jobs.domain.job import Job
from control_plane.jobs.ports import Computed, TryAgain
from control_plane.protocols.header_forwarding import BACKGROUND_MARK
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.kserve.routes import V2Route, read_route
from control_plane.triton.ports import Upstream

_BUDGET_TIMEOUT_S = 60.0
_UNAVAILABLE = 503


class ComputeLines(Protocol):
    """Computes a chunk of a batch: `frontends/batches/compute_lines`."""

    async def compute(self, job: Job, principal: Principal, body: bytes) -> Computed: ...


class _JobRequest(HttpInferRequest):
    """A job's request, which notes when it was sent to a server, and is marked there if it is to yield to callers'."""

    __slots__ = ("_sent", "_yields")

    def __init__(self, http: HttpRequest, route: V2Route, principal: Principal, context: HttpInferContext, *, yields: bool) -> None:
        super().__init__(http, route, principal, context)
        self._yields = yields
        self._sent: list[float] = []
        """Times at which it was sent. Copies share it: what is traced is sent as one."""

    @property
    def sent_s(self) -> float | None:
        """When it was sent last; None: not yet."""
        return self._sent[-1] if self._sent else None

    def read_at_once(self) -> InferCall | None:
        call = super().read_at_once()
        return None if call is None else _outside_sequences(call)

    def read(self) -> Steps[InferCall]:
        return _outside_sequences((yield from super().read()))

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[HttpAnswer]:
        self._sent.append(asyncio.get_running_loop().time())
        http = self.http
        if self._yields:
            http = HttpRequest(http.method, http.target, [*http.headers, BACKGROUND_MARK], http.body)
        return server.http.send(http, timeout_s=timeout_s, slot=self.slot)


class JobCompute:
    """Computes jobs by this process's inference service."""

    def __init__(
        self,
        inference_with: Callable[[Meter, bool], InferenceService],
        context: HttpInferContext,
        budget: BodyBudget,
        *,
        meter: Meter,
        is_hot: Callable[[str], bool],
        is_alone: Callable[[], bool],
        yielding: Yielding,
        lines: ComputeLines | None = None,
    ) -> None:
        """`inference_with` makes the inference service that counts by the given meter, and is told whether models may interrupt
        requests for callers. `is_hot` says of a model or route whether it needs no load, `is_alone` whether there are no
        callers to yield to, `yielding` which attempts are marked; `lines` computes chunks of batches.
        """
        self._lines = lines
        self._is_alone = is_alone
        self._yielding = yielding
        self._inference_with = inference_with
        self._context = context
        self._budget = budget
        self._meter = meter
        self.is_hot = is_hot

    @asynccontextmanager
    async def room_for(self, size_bytes: int) -> AsyncIterator[None]:
        if size_bytes <= UNCOUNTED_BYTES:
            yield
            return
        try:
            await self._budget.acquire(size_bytes, _BUDGET_TIMEOUT_S)
        except Overloaded as exc:
            raise TryAgain(str(exc), was_computed=False, retry_after_s=exc.retry_after_s, is_crowded=True) from exc
        try:
            yield
        finally:
            self._budget.release(size_bytes)

    async def compute(self, job: Job, body: bytes) -> Computed:
        if self._lines is not None and job.target == EMBEDDINGS:
            return await self._lines.compute(job, _principal_of(job), body)
        meter = JobMeter(self._meter)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in job.headers]
        http = HttpRequest(b"POST", job.target.encode(), headers, body)
        yields = self._yielding.yields(job)
        request = _JobRequest(http, read_route(http.method, http.target), _principal_of(job), self._context, yields=yields)
        try:
            answer = await self._answer(request, self._inference_with(meter, yields))
        except ControlPlaneError as exc:
            if yields:
                self._yielding.failed(exc)
            if STATUS[exc.code].retryable:
                raise try_again_after(exc, was_computed=request.sent_s is not None and not _is_not_sent(exc)) from exc
            answer = render_error(exc, job.target.encode())
        if answer.status == _UNAVAILABLE:
            raise TryAgain("Triton answered that it cannot serve the model now", was_computed=True)
        # What it takes beside callers says nothing of those that are not seen here.
        seconds = asyncio.get_running_loop().time() - request.sent_s if request.sent_s is not None and self._is_alone() else None
        return Computed(answer, meter.model, meter.usage, seconds=seconds)

    async def _answer(self, request: HttpInferRequest, inference: InferenceService) -> HttpAnswer:
        if request.http.header(b"content-encoding") is None:
            return await inference.infer(request)
        async with decode(request, self._budget, self._context.limits):
            return await inference.infer(request)


def _principal_of(job: Job) -> Principal:
    """Whoever submitted the job, with the scopes that it had then."""
    if not job.tenant and not job.key_id:
        return ANONYMOUS
    return Principal(job.tenant, job.key_id, Scopes(tuple(map(parse_scope, job.scopes))))


def _outside_sequences(call: InferCall) -> InferCall:
    """Return a job's call, unless it is part of a sequence: jobs have no order, and a second attempt would repeat its step.

    Raises InvalidRequest.
    """
    if call.sequence_id:
        raise InvalidRequest("a job cannot be part of a sequence: jobs are computed in any order, and again after a fault; call infer")
    return call


def _is_not_sent(error: ControlPlaneError) -> bool:
    """Whether nothing of the request was sent, although sending was begun."""
    return isinstance(error, UpstreamUnavailable) and error.is_not_sent
