"""Governance of a request: its tenant's limits, its slot at the model and its route."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from control_plane.core.errors import DeadlineExceeded, InvalidRequest, LimitExceeded, ModelNotFound, Overloaded, UpstreamUnavailable
from control_plane.core.infer_call import InferCall, Outcome
from control_plane.core.model import UNKNOWN_MODEL
from control_plane.inference.model_names import ModelNames
from control_plane.objects.domain.route import Route, Target
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.http1 import make_answer
from control_plane.triton.compute_time import Ending
from control_plane.triton.servers import Servers
from tests.aio import run_in_virtual_time as run
from tests.aio import settle
from tests.fakes import FakeHttpStream
from tests.unit.inference.governed_bench import Bench, Dispatch, Request, ended

pytestmark = pytest.mark.virtual_time


async def test_who_chooses_servers_is_told_what_a_request_costs_and_who_asks_and_its_routes_pool() -> None:
    dispatch = Dispatch()
    bench = Bench(Tenant("team", priority=2), routes=(Route("m", "real", pool="long"),), dispatch=dispatch)
    streamed = Request()
    streamed.answer = FakeHttpStream()
    await bench.service.infer(Request())
    (await bench.service.generate(streamed)).close()
    assert dispatch.told == [("real", "long", 3.0, 2)] * 2


async def test_all_names_that_nobody_knows_share_one_line() -> None:
    """Otherwise callers could create one queue for each made-up model name, and its memory."""
    bench = Bench(max_in_flight_per_model=1)
    for number in range(50):
        request = Request()
        request.name, request.answered = f"made-up-{number}", Outcome.MODEL_NOT_FOUND
        await bench.service.infer(request)
    admission = bench.service.running.governance.admission
    assert set(admission.slots.models) == {UNKNOWN_MODEL}


QUEUED_S, THERE_S = 3.0, 0.5
"""Seconds that each request of the next test waits for its slot, and is at Triton."""


@pytest.mark.parametrize(
    ("ends", "by_table", "by_counts"),
    [
        pytest.param("answered", 3.0, Ending.ANSWERED, id="answered"),
        pytest.param("failed", 3.0, Ending.FAILED, id="Triton's error, which may be one of the model's"),
        pytest.param("left", 3.0, Ending.LEFT, id="its caller left, and Triton computes it all the same"),
        pytest.param("late", 3.0, Ending.LEFT, id="so it does beyond the deadline"),
        pytest.param("left in the queue", 0.0, None, id="never sent"),
        pytest.param("no triton", 0.0, None, id="computed by nobody"),
    ],
)
@pytest.mark.parametrize("expected", [pytest.param(None, id="nothing known"), pytest.param(9000.0, id="usually longer"), 40.0])
def test_charged_is_what_was_at_triton_and_no_time_of_waiting(
    ends: str, by_table: float, by_counts: Ending | None, expected: float | None
) -> None:
    async def main(bench: Bench) -> None:
        await bench.service.infer(Request())  # the name is known
        before, request = Request(), Request()
        before.may_answer.clear()
        request.may_answer.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.service.infer(before))
            await settle()
            asking = tasks.create_task(_any_end(bench, request))
            await asyncio.sleep(QUEUED_S)
            bench.meter.events.clear()
            bench.costs.charged.clear()
            if ends == "left in the queue":
                asking.cancel()
            before.may_answer.set()
            await settle()
            bench.meter.events[:] = [event for event in bench.meter.events if event.outcome is Outcome.ABANDONED]
            bench.costs.charged.clear()
            await asyncio.sleep(THERE_S)
            request.answered = Outcome.UPSTREAM_ERROR if ends == "failed" else Outcome.ANSWERED
            request.error = {"late": DeadlineExceeded("x"), "no triton": UpstreamUnavailable("x")}.get(ends)
            if ends == "left":
                asking.cancel()
            request.may_answer.set()

    bench = Bench(max_in_flight_per_model=1)
    run(main(bench))
    assert bench.event.compute_units == by_table

    bench = Bench(max_in_flight_per_model=1)
    bench.costs.counted["m"] = expected
    run(main(bench))
    assert bench.costs.charged == ([("team", "m", by_counts, 3, pytest.approx(THERE_S * 1e3))] if by_counts else [])
    if by_counts is None:
        assert bench.event.compute_units == 0.0
    elif expected is None:
        assert bench.event.compute_units is None, "its line in the log says that it is not known yet"
    else:
        told = expected if by_counts is Ending.LEFT else min(expected, THERE_S * 1e3)
        assert bench.event.compute_units == pytest.approx(told)


async def _any_end(bench: Bench, request: Request) -> None:
    try:
        await bench.service.infer(request)
    except (DeadlineExceeded, UpstreamUnavailable):
        return


async def test_a_tenant_beyond_its_rate_is_refused_before_its_request_is_read() -> None:
    bench, request = Bench(Tenant("team", requests_per_s=1.0)), Request()
    request.error = InvalidRequest("would be found when it is read")
    await bench.service.infer(Request())
    with pytest.raises(LimitExceeded) as refused:
        await bench.service.infer(request)
    assert 0 < refused.value.retry_after_s <= 1.0
    assert dict(refused.value.limits)["RateLimit-Remaining"] == "0"
    assert [(event.outcome, event.model) for event in bench.meter.events] == [(Outcome.ANSWERED, "m"), (Outcome.REFUSED, "m")]


@pytest.mark.parametrize("ends", ["answered", "failed", "cancelled", "refused"])
async def test_what_a_request_held_is_free_again_however_it_ended(ends: str) -> None:
    bench, request = Bench(Tenant("team", concurrency=1)), Request()
    if ends == "failed":
        request.error = UpstreamUnavailable("x")
    if ends == "refused":
        request.error = InvalidRequest("x")
    request.may_answer.clear()
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ended(bench, request))
        await settle()
        if ends != "refused":
            with pytest.raises(LimitExceeded):
                await bench.service.infer(Request())
        if ends == "cancelled":
            asking.cancel()
        request.may_answer.set()
    assert await bench.service.infer(Request()) == "answer"
    assert bench.service.in_flight == 0


async def test_an_answer_in_pieces_holds_its_place_until_it_is_closed() -> None:
    bench, request = Bench(Tenant("team", concurrency=1)), Request()
    request.answer = FakeHttpStream().put(b"piece", None)
    stream = await bench.service.generate(request)
    with pytest.raises(LimitExceeded):
        await bench.service.infer(Request())
    await _read_to_the_end(stream)
    assert await bench.service.infer(Request()) == "answer"
    assert [event.outcome for event in bench.meter.events] == [Outcome.REFUSED, Outcome.ANSWERED, Outcome.ANSWERED]


async def _read_to_the_end(stream: Any) -> None:
    try:
        while await stream.receive() is not None:
            pass
    finally:
        stream.close()


def test_a_route_says_where_it_goes_and_how_long_it_may_take() -> None:
    bench, request = Bench(routes=(Route("m", "real", version="2", deadline_s=3.0),)), Request()

    run(bench.service.infer(request))

    assert (request.with_model, request.timeouts_s) == (("real", "2"), [3.0])
    assert (bench.event.route, bench.event.model) == ("m", "real")
    assert [record.model_name for record in bench.recorder.records] == ["real"]


def test_the_callers_own_time_goes_before_the_routes() -> None:
    bench, request = Bench(routes=(Route("m", "real", deadline_s=3.0),)), Request(timeout_s=0.5)

    run(bench.service.infer(request))

    assert request.timeouts_s == [0.5]


async def test_where_a_model_is_busy_a_request_waits_for_its_turn_and_has_what_is_left_of_its_time() -> None:
    bench, first, second = Bench(max_in_flight_per_model=1), Request(), Request(timeout_s=10.0)
    first.may_answer.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.service.infer(first))
        await settle()
        tasks.create_task(bench.service.infer(second))
        await settle()
        assert second.timeouts_s == []
        await asyncio.sleep(4.0)
        first.may_answer.set()
    assert second.timeouts_s == [pytest.approx(6.0)]


async def test_who_would_wait_for_longer_than_it_has_is_turned_away_at_once() -> None:
    bench, slow = Bench(max_in_flight_per_model=1), Request()
    for _ in range(20):  # so that the model's pace is known
        request = Request()
        request.may_answer.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.service.infer(request))
            await settle()
            await asyncio.sleep(1.0)
            request.may_answer.set()
    slow.may_answer.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.service.infer(slow))
        await settle()
        with pytest.raises(Overloaded):
            await bench.service.infer(Request(timeout_s=0.1))
        slow.may_answer.set()
    assert [event.outcome for event in bench.meter.events].count(Outcome.REFUSED) == 1


@pytest.mark.parametrize(("fails_after_s", "is_believed"), [(0.001, False), (3.0, True)])
async def test_a_model_seems_no_faster_by_requests_that_fail_at_once(fails_after_s: float, is_believed: bool) -> None:
    """Whose caller could have others sent that Triton cannot answer in time; those that fail late hold them up."""
    bench = Bench()

    async def ask(takes_s: float, outcome: Outcome) -> None:
        request = Request()
        request.answered = outcome
        request.may_answer.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.service.infer(request))
            await asyncio.sleep(takes_s)
            request.may_answer.set()

    for _ in range(20):
        await ask(1.0, Outcome.ANSWERED)
    for _ in range(20):
        await ask(fails_after_s, Outcome.UPSTREAM_ERROR)
    slots = bench.service._governance.admission.slots.models["m"]
    answer_s = slots._service.answer_s(3.0, ahead=0.0)
    assert answer_s is not None
    assert (answer_s > 1.5) == is_believed
    assert answer_s > 0.99


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_streams_length_is_not_its_models_service_time(is_streamed: bool) -> None:
    """It lasts as long as its caller wants; what follows from it would keep others out."""
    bench = Bench()
    request = Request()
    request.may_answer.clear()
    request.answer = FakeHttpStream() if is_streamed else make_answer(200)
    async with asyncio.TaskGroup() as tasks:
        answering = tasks.create_task(bench.service.generate(request))
        await asyncio.sleep(5.0)
        request.may_answer.set()
    if is_streamed:
        answering.result().close()
    (slots,) = bench.service._governance.admission.slots.models.values()
    assert slots._service.answer_s(3.0, ahead=0.0) == (None if is_streamed else pytest.approx(5.0))


async def test_what_a_caller_lets_be_generated_keeps_no_other_out() -> None:
    """Neither as a stream nor whole: a call of ten seconds says nothing of the next, which may have one second."""
    bench = Bench()
    long = Request(timeout_s=12.0)
    long.answer = make_answer(200)
    long.is_open_ended = True
    long.may_answer.clear()
    async with asyncio.TaskGroup() as tasks:
        answering = [tasks.create_task(bench.service.generate(long)) for _ in range(4)]
        await asyncio.sleep(10.0)
        long.may_answer.set()
    assert all(each.result().status == 200 for each in answering)
    (slots,) = bench.service._governance.admission.slots.models.values()
    assert slots._service.answer_s(3.0, ahead=0.0) is None
    long.may_answer.clear()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(bench.service.generate(long)) for _ in range(4)]
        await asyncio.sleep(1.0)
        short = Request(timeout_s=1.0)
        short.answer = make_answer(200)
        for _ in range(20):
            assert (await bench.service.generate(short)).status == 200
        long.may_answer.set()
    assert len(running) == 4


@pytest.mark.parametrize(
    ("known", "asked", "missing"),
    [
        pytest.param({"cold"}, "cold", None, id="a model"),
        pytest.param({"cold"}, "made-up", "made-up", id="none"),
        pytest.param({"next"}, "route", None, id="a route to a model"),
        pytest.param({"route"}, "route", "real", id="a route to none, whatever it is named"),
    ],
)
async def test_who_hands_in_work_for_later_must_name_a_model_or_a_route_to_one(known: set[str], asked: str, missing: str | None) -> None:
    bench = Bench(routes=(Route("route", "real", targets=(Target("next", 100),)),))
    bench.service.models = ModelNames(Servers(), is_described=known.__contains__)
    if missing is None:
        await bench.service.require_model(asked)
        return
    with pytest.raises(ModelNotFound, match=rf"^Request for unknown model: '{missing}' is not found$"):
        await bench.service.require_model(asked)


class NobodyAnswersHere:
    """Fake `dispatch/region_failover` of a region without a server that answers: each request leaves before it is asked for here."""

    def __init__(self) -> None:
        self.repeatable: list[bool] = []

    async def answer(self, request: Any, running: Any, timeout_s: float, here: Any) -> Any:
        self.repeatable.append(running.is_repeatable)
        return await here(timeout_s)


@pytest.mark.parametrize("is_repeatable", [True, False])
async def test_what_leaves_its_region_at_once_is_known_to_be_repeatable_or_not(is_repeatable: bool) -> None:
    bench = Bench(routes=(Route("r", model="m", is_repeatable=is_repeatable),))
    bench.service.region_failover = elsewhere = NobodyAnswersHere()  # type: ignore[assignment]
    request = Request()
    request.name = "r"
    await bench.service.infer(request)
    assert elsewhere.repeatable == [is_repeatable]


async def test_in_a_fleet_its_models_configuration_says_so_too() -> None:
    dispatch = Dispatch()
    dispatch.catalogue = Declared()  # type: ignore[assignment]
    bench = Bench(dispatch=dispatch)
    bench.service.region_failover = elsewhere = NobodyAnswersHere()  # type: ignore[assignment]
    for name in ("repeatable", "m"):
        request = Request()
        request.name = name
        await bench.service.infer(request)
    assert elsewhere.repeatable == [True, False]


class Streams(Dispatch):
    """Fake dispatcher that notes which streams may be sent again."""

    def __init__(self) -> None:
        super().__init__()
        self.repeatable: list[bool] = []

    async def stream(self, request: Any, call: InferCall, *, timeout_s: float, running: Any = None) -> Any:
        self.repeatable.append(running.is_repeatable)
        return await super().send(request, call, timeout_s=timeout_s, running=running)


@pytest.mark.parametrize("is_repeatable", [True, False])
async def test_a_stream_is_known_to_be_repeatable_or_not(is_repeatable: bool) -> None:
    dispatch = Streams()
    bench = Bench(routes=(Route("r", model="m", is_repeatable=is_repeatable),), dispatch=dispatch)
    request = Request()
    request.name, request.answer = "r", FakeHttpStream()
    (await bench.service.generate(request)).close()
    assert dispatch.repeatable == [is_repeatable]


class Declared:
    """Fake `inference/dispatch/catalogue.Catalogue` of a fleet with a model that says it may be computed twice."""

    def is_repeatable(self, model: str) -> bool:
        return model == "repeatable"
