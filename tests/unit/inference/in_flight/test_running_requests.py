"""When requests that have ended are recorded."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.infer_call import Outcome
from control_plane.objects.domain.tenant import Tenant
from tests.fakes.governance import FakeMeter
from tests.unit.inference.governed_bench import Bench, Request, ended

pytestmark = pytest.mark.virtual_time


def later() -> Bench:
    bench = Bench(Tenant("team", concurrency=1))
    bench.service.running.records_later = True
    return bench


async def test_an_answer_is_recorded_at_the_end_of_the_turn_as_what_it_took_by_then() -> None:
    bench = later()
    request = Request()
    request.may_answer.clear()
    asyncio.get_running_loop().call_later(2.0, request.may_answer.set)
    assert await bench.service.infer(request) == "answer"
    assert (bench.recorder.records, bench.meter.added, bench.service.in_flight) == ([], [], 0)
    await asyncio.sleep(0)
    ((_, _, outcome, duration_s),) = bench.recorder.records
    assert (outcome, duration_s, len(bench.meter.added)) == (Outcome.ANSWERED, 2.0, 1)


async def test_its_place_in_its_tenants_limits_and_its_slot_are_free_at_once() -> None:
    """Or who has got his answer, and may have one request at a time, would be refused the next."""
    bench = later()
    for _ in range(3):
        await bench.service.infer(Request())
        bench.service.running.governance.admission.check("team")
    assert all(limiter.are_idle for limiter in bench.service.running.governance.admission.slots.models.values())
    await asyncio.sleep(0)
    assert bench.recorder.outcomes == [Outcome.ANSWERED] * 3


async def test_a_failure_is_recorded_at_once() -> None:
    bench, request = later(), Request()
    request.error = UpstreamUnavailable("gone")
    await ended(bench, request)
    assert bench.recorder.outcomes == [Outcome.UNAVAILABLE]


async def test_what_a_job_is_metered_by_is_added_up_when_its_request_has_ended() -> None:
    bench, own = later(), FakeMeter()
    await bench.service.metered_by(own).infer(Request())
    assert len(own.added) == 1
