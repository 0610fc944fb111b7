"""A job computed by the real inference service before a fake Triton."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, UpstreamUnavailable
from control_plane.frontends.jobs.compute import JobCompute
from control_plane.frontends.jobs.yielding import Yielding
from control_plane.frontends.kserve.http import V2Http
from control_plane.inference.inference import InferenceService
from control_plane.jobs.ports import TryAgain
from control_plane.metering.domain.usage import Usage
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.header_forwarding import BACKGROUND_MARK
from control_plane.protocols.http1 import HttpRequest, make_answer
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.telemetry.tracing import Tracer
from tests.aio import settle
from tests.fakes.governance import FakeMeter, api_key, governance, known_state
from tests.fakes.jobs import job
from tests.fakes.spans import Spans
from tests.wire.gateway import INFER
from tests.wire.services import Services

TEAM = Tenant("team")
JOB = job(headers=(("content-type", "application/json"), ("x-a", "ö")), scopes=("infer:m",))


@asynccontextmanager
async def computing(
    *, tenant: Tenant = TEAM, budget_bytes: int = 1 << 20, tracer: Tracer | None = None
) -> AsyncIterator[tuple[Services, JobCompute, FakeMeter]]:
    meter = FakeMeter(has_log=False)
    known = known_state(keys=(api_key(1, "infer:m"),), tenants=(tenant,))
    governed = governance(known, authentication=True, meter=meter)
    it = Services(governed=governed, body_limits=BodyLimits(), max_buffered_bytes=budget_bytes)

    async def is_preempted(model: str) -> bool:
        return True

    def inference_with(own: Any, yields: bool) -> InferenceService:
        admission = governed.admission.in_background(is_preempted if yields else None)
        below = replace(governed, admission=admission, meter=own)
        return InferenceService(servers=it.servers, recorder=it.recorder, governance=below, default_timeout_s=1.0, tracer=tracer)

    def is_alone() -> bool:
        return not governed.admission.slots.background.are_callers_present

    compute = JobCompute(
        inference_with,
        V2Http(it.kserve).context,
        it.budget,
        meter=meter,
        is_hot=lambda model: True,
        is_alone=is_alone,
        yielding=Yielding(is_alone),
    )
    async with it.running():
        yield it, compute, meter


async def test_its_usage_is_the_jobs_and_is_not_counted_when_it_ends() -> None:
    async with computing() as (it, compute, meter):
        computed = await compute.compute(JOB, INFER)

    assert (computed.answer.body, computed.model) == (INFER, "m")
    assert computed.usage == Usage(requests=1, rows=1, elements=1, compute_units=1.0)
    assert (meter.added, meter.units) == ([], {"team": 1.0})
    (sent,) = it.upstream.http.requests
    assert (sent.target, sent.body, sent.header(b"x-a")) == (b"/v2/models/m/infer", INFER, "ö".encode("latin-1"))
    assert sent.header(b"tidegate-background") == BACKGROUND_MARK[1], "callers may come while it is computed"


@pytest.mark.parametrize(("attempts", "marked"), [pytest.param(1, BACKGROUND_MARK[1], id="first"), pytest.param(2, None, id="second")])
async def test_beside_callers_a_first_attempt_is_marked_so_that_a_model_lets_it_yield(attempts: int, marked: bytes | None) -> None:
    async with computing() as (it, compute, _):
        gate = it.governed.admission.slots.background
        gate.request_began()
        gate.request_ended()
        computed = await compute.compute(replace(JOB, attempts=attempts), INFER)

    assert computed.answer.body == INFER
    (sent,) = it.upstream.http.requests
    assert (sent.header(b"tidegate-background"), sent.header(b"x-a")) == (marked, "ö".encode("latin-1"))


async def test_a_second_attempt_which_is_not_interrupted_waits_for_a_moment_without_callers_requests() -> None:
    async with computing() as (it, compute, _), asyncio.TaskGroup() as tasks:
        gate = it.governed.admission.slots.background
        gate.request_began()
        await compute.compute(JOB, INFER)
        waits = tasks.create_task(compute.compute(replace(JOB, attempts=2), INFER))
        await settle()
        assert len(it.upstream.http.requests) == 1
        gate.request_ended()
        await waits
        assert len(it.upstream.http.requests) == 2


async def test_where_a_marked_attempt_was_in_vain_the_next_ones_are_for_callers_only() -> None:
    def fail(request: HttpRequest) -> Any:
        raise DeadlineExceeded("late")

    async with computing() as (it, compute, _):
        succeed, it.upstream.http.answer = it.upstream.http.answer, fail
        with pytest.raises(TryAgain):
            await compute.compute(JOB, INFER)
        it.upstream.http.answer = succeed
        await compute.compute(JOB, INFER)
        gate = it.governed.admission.slots.background
        gate.request_began()
        gate.request_ended()
        await compute.compute(JOB, INFER)

    marks = [sent.header(b"tidegate-background") for sent in it.upstream.http.requests]
    assert marks == [BACKGROUND_MARK[1], None, BACKGROUND_MARK[1]]


@pytest.mark.parametrize("principal", [pytest.param({}, id="of a tenant"), pytest.param({"tenant": "", "key_id": ""}, id="anonymous")])
@pytest.mark.parametrize("padding", [pytest.param(0, id="small"), pytest.param(1 << 18, id="large")])
async def test_a_part_of_a_sequence_is_refused_and_never_sent(principal: dict[str, str], padding: int) -> None:
    body = orjson.dumps({**orjson.loads(INFER), "parameters": {"sequence_id": 7}}) + b" " * padding
    async with computing() as (it, compute, _):
        computed = await compute.compute(replace(JOB, **principal), body)

    assert (computed.answer.status, it.upstream.http.requests) == (400, [])
    assert b"cannot be part of a sequence" in computed.answer.body


@pytest.mark.parametrize(
    ("body", "scopes", "status"),
    [
        pytest.param(b"{", ("infer:m",), 500, id="no-json"),
        pytest.param(INFER, ("infer:other",), 403, id="without-the-right"),
    ],
)
async def test_an_error_that_would_be_met_again_is_the_answer(body: bytes, scopes: tuple[str, ...], status: int) -> None:
    async with computing() as (it, compute, _):
        computed = await compute.compute(replace(JOB, scopes=scopes), body)

    assert computed.answer.status == status
    assert computed.usage is not None
    assert (computed.usage.requests, computed.usage.refused, it.upstream.http.requests) == (0, 1, [])


@pytest.mark.parametrize(
    ("error", "was_computed"),
    [
        pytest.param(UpstreamUnavailable("broke", is_not_sent=False), True, id="broken-off"),
        pytest.param(UpstreamUnavailable("refused", is_not_sent=True), False, id="not-sent"),
        pytest.param(DeadlineExceeded("late"), True, id="late"),
    ],
)
async def test_an_attempt_counts_if_a_model_may_have_seen_it(error: ControlPlaneError, was_computed: bool) -> None:
    def fail(request: HttpRequest) -> Any:
        raise error

    async with computing() as (it, compute, _):
        it.upstream.http.answer = fail
        with pytest.raises(TryAgain) as again:
            await compute.compute(JOB, INFER)

    assert again.value.was_computed is was_computed


@pytest.mark.parametrize("is_late", [False, True])
async def test_an_attempt_that_its_caller_has_sampled_is_a_part_of_the_callers_trace(is_late: bool) -> None:
    def answer(request: HttpRequest) -> Any:
        if is_late:
            raise DeadlineExceeded("late")
        return make_answer(200, b"{}")

    spans = Spans(ratio=0.0)
    headers = (*JOB.headers, ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
    async with computing(tracer=spans.tracer) as (it, compute, _):
        it.upstream.http.answer = answer
        if is_late:
            with pytest.raises(TryAgain) as again:
                await compute.compute(replace(JOB, headers=headers), INFER)
            assert again.value.was_computed
        else:
            assert (await compute.compute(replace(JOB, headers=headers), INFER)).seconds is not None
        (sent,) = it.upstream.http.requests
    server, (attempt,), _ = spans.by_name()
    assert server.parent is not None
    assert server.parent.span_id == 0xB7AD6B7169203331
    assert sent.header(b"traceparent") == b"00-0af7651916cd43dd8448eb211c80319c-%016x-01" % attempt.get_span_context().span_id
    assert sent.header(b"tidegate-background") == BACKGROUND_MARK[1]


async def test_while_triton_is_down_nothing_counts_and_others_jobs_are_held_up_too() -> None:
    async with computing() as (it, compute, _):
        it.servers.down("Triton is being restarted")
        with pytest.raises(TryAgain) as again:
            await compute.compute(JOB, INFER)

    assert (again.value.was_computed, again.value.is_crowded) == (False, True)


async def test_a_tenant_beyond_its_rate_waits_and_holds_up_nobody() -> None:
    async with computing(tenant=Tenant("team", requests_per_s=0.1, burst=1)) as (_, compute, _meter):
        await compute.compute(JOB, INFER)
        with pytest.raises(TryAgain) as again:
            await compute.compute(JOB, INFER)

    assert (again.value.was_computed, again.value.is_crowded) == (False, False)
    assert (again.value.retry_after_s or 0.0) > 5.0


async def test_tritons_own_unavailability_is_tried_again() -> None:
    async with computing() as (it, compute, _):
        it.upstream.http.answer = lambda request: make_answer(503)
        with pytest.raises(TryAgain):
            await compute.compute(JOB, INFER)


async def test_jobs_yield_to_requests_of_every_tenant() -> None:
    async with computing(tenant=Tenant("team", priority=100)) as (it, _, _):
        admission = it.governed.admission
        above, below = admission.admit("team"), admission.in_background().admit("team")
        least = admission.admit("nobody special")
        assert above is not None
        assert below is not None
        assert least is not None
        assert below.priority < least.priority < above.priority == 100
        assert admission.account("team").in_flight == 2, "limits are shared"
        for permit in (above, below, least):
            permit.release()


async def test_what_a_job_takes_beside_callers_is_not_told() -> None:
    async with computing() as (it, compute, _):
        assert (await compute.compute(JOB, INFER)).seconds is not None
        gate = it.governed.admission.slots.background
        gate.request_began()
        gate.request_ended()
        assert (await compute.compute(JOB, INFER)).seconds is None


async def test_a_large_body_needs_room_in_the_budget_of_all_bodies() -> None:
    async with computing(budget_bytes=100_000) as (it, compute, _):
        async with compute.room_for(90_000):
            assert it.budget.held_bytes == 90_000
        with pytest.raises(TryAgain):
            async with compute.room_for(100_001):
                raise AssertionError
