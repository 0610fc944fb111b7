"""The usage event that a request leaves, however it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from control_plane.core.errors import DeadlineExceeded, InvalidRequest, Overloaded, UpstreamUnavailable
from control_plane.core.infer_call import Frontend, InferCall, Outcome
from control_plane.core.model import UNKNOWN_MODEL
from control_plane.core.tensor import Tensor
from control_plane.metering.domain.usage import UsageEvent
from control_plane.objects.domain.route import Route
from control_plane.protocols.http1 import make_answer
from control_plane.telemetry.shed_reason import ShedReason
from tests.aio import run_in_virtual_time as run
from tests.aio import settle
from tests.unit.inference.governed_bench import NOT_MINE, TEAM, TODAY_S, Bench, Request, ended

pytestmark = pytest.mark.virtual_time


def test_an_answered_request_leaves_an_event_with_all_that_is_charged() -> None:
    bench = Bench()

    run(bench.service.infer(Request()))

    assert bench.event == UsageEvent(
        ended_s=TODAY_S,
        tenant="team",
        key_id="k1",
        route="m",
        model="m",
        frontend=Frontend.HTTP,
        outcome=Outcome.ANSWERED,
        duration_s=0.0,
        rows=3,
        elements=6,
        compute_units=3.0,
        server="triton",
        status=200,
        request_id="id-1",
    )


@pytest.mark.parametrize(
    ("prepare", "outcome", "model", "units"),
    [
        pytest.param(lambda it: setattr(it, "answered", Outcome.UPSTREAM_ERROR), Outcome.UPSTREAM_ERROR, "m", 0.0, id="refused-at-once"),
        pytest.param(
            lambda it: setattr(it, "answered", Outcome.MODEL_NOT_FOUND), Outcome.MODEL_NOT_FOUND, "m", 0.0, id="not-there-any-more"
        ),
        pytest.param(lambda it: setattr(it, "error", InvalidRequest("x")), Outcome.REFUSED, "m", 0.0, id="unreadable"),
        pytest.param(lambda it: setattr(it, "principal", NOT_MINE), Outcome.REFUSED, "m", 0.0, id="not-allowed"),
        pytest.param(lambda it: setattr(it, "error", UpstreamUnavailable("x")), Outcome.UNAVAILABLE, "m", 0.0, id="no-triton"),
    ],
)
def test_whatever_comes_of_it_one_event_is_left(prepare: Callable[[Request], None], outcome: Outcome, model: str, units: float) -> None:
    bench, request = Bench(), Request()
    run(bench.service.infer(Request()))  # a name is kept of models that have answered
    bench.meter.events.clear()
    bench.recorder.records.clear()
    prepare(request)

    run(asyncio.wait_for(ended(bench, request), 5))

    assert (bench.event.outcome, bench.event.model, bench.event.route, bench.event.compute_units) == (outcome, model, model, units)
    assert [record.outcome for record in bench.recorder.records] == [outcome]


@pytest.mark.parametrize("outcome", [Outcome.DEADLINE_EXCEEDED, Outcome.UPSTREAM_ERROR, Outcome.MODEL_NOT_FOUND, Outcome.UNAVAILABLE])
def test_names_that_callers_make_up_are_not_kept(outcome: Outcome) -> None:
    bench, request = Bench(), Request()
    bench.costs.counted["m"] = None  # no repository has it
    request.answered = outcome

    run(bench.service.infer(request))

    assert (bench.event.model, bench.event.route, bench.event.compute_units or 0.0) == (UNKNOWN_MODEL, UNKNOWN_MODEL, 0.0)
    assert [record.model_name for record in bench.recorder.records] == [UNKNOWN_MODEL]
    assert bench.meter.added[0][1] == UNKNOWN_MODEL


FAILURES = [
    pytest.param(lambda it: setattr(it, "error", InvalidRequest("no")), 400, "no", "", id="unreadable"),
    pytest.param(lambda it: setattr(it, "principal", NOT_MINE), 403, "'m' needs a scope that its name fits", "", id="not-allowed"),
    pytest.param(lambda it: setattr(it, "error", UpstreamUnavailable("gone")), 503, "gone", "triton", id="no-triton"),
    pytest.param(lambda it: setattr(it, "error", DeadlineExceeded("late")), 504, "late", "triton", id="late"),
    pytest.param(lambda it: setattr(it, "error", Overloaded("x" * 1000)), 503, "x" * 300, "triton", id="cut"),
    pytest.param(
        lambda it: (setattr(it, "answer", make_answer(500, b'{"error":"shape"}')), setattr(it, "answered", Outcome.UPSTREAM_ERROR)),
        500,
        "shape",
        "triton",
        id="the-model-failed",
    ),
]


@pytest.mark.parametrize(("prepare", "status", "error", "server"), FAILURES)
def test_a_failure_leaves_what_its_caller_was_told_and_where_it_was(
    prepare: Callable[[Request], Any], status: int, error: str, server: str
) -> None:
    bench, request = Bench(routes=(Route("m", "real"),)), Request()
    bench.service.models.answered("real")
    request.seen_id = request.id = "i" * 200
    prepare(request)

    run(ended(bench, request))

    event = bench.event
    assert (event.route, event.model, event.server, event.status) == ("m", "real", server, status)
    assert event.error.startswith(error)
    assert len(event.error) <= 300
    assert event.request_id == "i" * 128
    assert [record.model_name for record in bench.recorder.records] == ["real"]


def test_without_an_id_of_its_own_it_has_its_heads() -> None:
    bench, request = Bench(), Request()
    request.id, request.seen_id = "", "head-7"

    run(bench.service.infer(request))

    assert bench.event.request_id == "head-7"


async def test_one_that_has_left_was_told_nothing() -> None:
    bench, request = Bench(), Request()
    bench.service.models.answered("m")
    request.may_answer.clear()
    task = asyncio.get_running_loop().create_task(bench.service.infer(request))
    await settle()
    task.cancel()
    await asyncio.wait([task])
    assert (bench.event.outcome, bench.event.model, bench.event.status) == (Outcome.ABANDONED, "m", None)


def test_streams_are_counted_once_and_their_requests_metered_each() -> None:
    bench = Bench()
    run(_stream(bench))

    assert len(bench.recorder.records) == 1
    assert [event.frontend for event in bench.meter.events] == [Frontend.GRPC_STREAM] * 3
    assert bench.service.in_flight == 0


async def _stream(bench: Bench) -> None:
    with bench.service.running.begin_stream(TEAM) as stream:
        for _ in range(3):
            with bench.service.running.begin_within_stream(TEAM) as count:
                count.admit()
                count.outcome = Outcome.ANSWERED
        stream.outcome = Outcome.ANSWERED


@pytest.mark.parametrize(("frontend", "metered"), [(Frontend.GRPC, 1), (Frontend.GRPC_STREAM, 0)])
@pytest.mark.parametrize(
    ("left_s", "error", "outcome"), [(0.5, Overloaded, Outcome.REFUSED), (0.0, DeadlineExceeded, Outcome.DEADLINE_EXCEEDED)]
)
async def test_what_was_not_read_in_time_is_recorded_as_its_kind(
    frontend: Frontend, metered: int, left_s: float, error: type[Exception], outcome: Outcome
) -> None:
    bench = Bench()

    assert isinstance(bench.service.running.late(frontend, TEAM, left_s), error)
    assert bench.recorder.outcomes == [outcome]
    assert [event.frontend for event in bench.meter.events] == [frontend] * metered
    assert bench.service.in_flight == 0


@pytest.mark.parametrize(("frontend", "metered"), [(Frontend.GRPC, 1), (Frontend.GRPC_STREAM, 0)])
@pytest.mark.parametrize("has_log", [True, False])
@pytest.mark.parametrize(("left_s", "outcome", "shed"), [(0.5, Outcome.REFUSED, 3), (0.0, Outcome.DEADLINE_EXCEEDED, 0)])
async def test_several_late_calls_that_are_told_of_at_once_are_recorded_each(
    frontend: Frontend, metered: int, has_log: bool, left_s: float, outcome: Outcome, shed: int
) -> None:
    bench = Bench()
    bench.meter.has_log = has_log
    bench.service.running.late(frontend, TEAM, left_s, 3)
    assert bench.recorder.outcomes == [outcome] * 3
    assert [each[:3] for each in bench.meter.added] == [("team", UNKNOWN_MODEL, outcome)] * 3 * metered
    assert len(bench.meter.events) == 3 * metered * has_log
    assert bench.service.running.governance.admission.counts["team", ShedReason.UNREAD] == shed
    assert bench.service.in_flight == 0


def test_each_request_that_a_server_computes_is_counted_as_work_also_those_of_a_stream() -> None:
    bench, refused = Bench(), Request()
    refused.error = InvalidRequest("x")

    async def main() -> None:
        await bench.service.infer(Request())
        await ended(bench, refused)
        for is_hit in (False, True, False):
            with bench.service.running.begin_within_stream(TEAM) as begun:
                admitted = begun.admit()
                assert admitted is not None
                running = admitted.authorize(InferCall("m", "", "", (Tensor("X", "FP32", (1, 2)),), elements=2), named="m")
                running.is_cache_hit, running.outcome = is_hit, Outcome.ANSWERED

    run(main())
    assert bench.recorder.computed == ["m"] * 3


def test_the_work_of_computed_answers_is_recorded_with_their_time() -> None:
    bench, failed = Bench(), Request()
    failed.error = UpstreamUnavailable("x")

    async def main() -> None:
        await bench.service.infer(Request())
        await ended(bench, failed)
        with bench.service.running.begin_within_stream(TEAM) as begun:  # answered by the cache
            admitted = begun.admit()
            assert admitted is not None
            hit = admitted.authorize(InferCall("m", "", "", (Tensor("X", "FP32", (1, 2)),), elements=2), named="m")
            hit.is_cache_hit, hit.outcome = True, Outcome.ANSWERED

    run(main())
    ((model, units, duration_s),) = bench.recorder.work
    assert (model, units) == ("m", 3.0)
    assert 0 <= duration_s < 100
