"""What leaves its region, and what stays: before other regions that answer as a test says."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from control_plane.core.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    GatewayStopping,
    InvalidRequest,
    LimitExceeded,
    ModelLoadFailed,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    QueryOfDeath,
    Recall,
    RecallCause,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.core.infer_call import InferCall, SendFailure
from control_plane.inference.dispatch.region_failover import MAX_BODY_BYTES
from control_plane.protocols.grpc import status_answer
from control_plane.protocols.http1 import HttpAnswer, make_answer
from tests.aio import settle
from tests.fakes import FakeUpstream
from tests.unit.inference.dispatch.region_failover_bench import OURS, THEIRS, Bench, Fleet, OnlyReady, Permit, Request, Running, Slow

pytestmark = pytest.mark.virtual_time

SILENT = Recall(RecallCause.SERVER_SILENT)

LEAVES = [
    pytest.param(Overloaded("busy"), id="no room"),
    pytest.param(ModelNotFound("none"), id="no such model"),
    pytest.param(ModelLoadFailed("corrupt"), id="a model that cannot be loaded"),
    pytest.param(UpstreamUnavailable("down"), id="no server"),
]
STAYS = [
    pytest.param(LimitExceeded("rate"), id="its tenant's rate"),
    pytest.param(PermissionDenied("no"), id="its caller's rights"),
    pytest.param(InvalidRequest("wrong"), id="a request that is wrong"),
    pytest.param(DeadlineExceeded("late"), id="its time is over"),
    pytest.param(QueryOfDeath("deadly"), id="processes have died of it"),
    pytest.param(GatewayStopping(), id="the gateway stops"),
]


async def test_what_is_answered_here_asks_nobody() -> None:
    bench = Bench()
    assert await bench.answer(OURS) is OURS
    assert not bench.regions.asked_for
    assert bench.regions.count == 1


@pytest.mark.parametrize("error", LEAVES)
async def test_what_this_region_cannot_do_is_done_there(error: ControlPlaneError) -> None:
    bench, running = Bench(), Running()
    assert await bench.answer(error, running=running) is THEIRS
    assert bench.regions.asked_for == [isinstance(error, ModelNotFound | ModelLoadFailed)]
    assert running.left == 1, "it holds no slot here meanwhile"


@pytest.mark.parametrize("error", LEAVES)
async def test_where_nobody_does_it_is_told_what_this_region_says(error: ControlPlaneError) -> None:
    bench = Bench()
    bench.regions.answer = None
    with pytest.raises(type(error)) as caught:
        await bench.answer(error)
    assert caught.value is error


@pytest.mark.parametrize("error", STAYS)
async def test_what_is_no_want_of_room_stays(error: ControlPlaneError) -> None:
    bench = Bench()
    with pytest.raises(type(error)):
        await bench.answer(error)
    assert not bench.regions.asked_for


@pytest.mark.parametrize(
    ("answer", "is_repeatable", "leaves"),
    [
        pytest.param(make_answer(404), False, True, id="Triton lacks the model"),
        pytest.param(make_answer(400), True, False, id="the request's own fault"),
        pytest.param(make_answer(503, b"Exceeds maximum queue size"), True, True, id="Triton's queue is full"),
        pytest.param(make_answer(503, b"Exceeds maximum queue size"), False, False, id="a step may have been computed"),
        pytest.param(status_answer(14, "x", loss=SendFailure.NOT_SENT), False, True, id="it was not sent"),
        pytest.param(status_answer(14, "x", loss=SendFailure.CONNECTION_LOST), True, False, id="a process may have died of it"),
        pytest.param(status_answer(14, "x", loss=SendFailure.TIMED_OUT), True, False, id="its time is over"),
    ],
)
async def test_an_answer_that_tells_of_a_fault_leaves_by_the_table(answer: Any, is_repeatable: bool, leaves: bool) -> None:
    bench = Bench()
    found = await bench.answer(answer, running=Running(is_repeatable=is_repeatable, sent_s=1.0))
    assert found is (THEIRS if leaves else answer)


@pytest.mark.parametrize(
    ("error", "is_repeatable", "leaves"),
    [
        pytest.param(UpstreamUnavailable("lost"), True, False, id="a process may have died of it"),
        pytest.param(UpstreamUnavailable("lost"), False, False, id="it may have been computed"),
        pytest.param(UpstreamUnavailable("unsent", is_not_sent=True), False, True, id="it was not sent"),
        pytest.param(UpstreamUnavailable("silent", recall=SILENT), True, True, id="it was taken back"),
        pytest.param(UpstreamUnavailable("silent", recall=SILENT), False, False, id="it may have been computed by a silent one"),
    ],
)
async def test_what_a_server_had_leaves_by_the_table(error: UpstreamUnavailable, is_repeatable: bool, leaves: bool) -> None:
    bench, running = Bench(), Running(is_repeatable=is_repeatable, sent_s=1.0)
    if leaves:
        assert await bench.answer(error, running=running) is THEIRS
    else:
        with pytest.raises(UpstreamUnavailable):
            await bench.answer(error, running=running)
        assert not bench.regions.asked_for


@pytest.mark.parametrize(
    ("running", "request_"),
    [
        pytest.param(Running(InferCall("m", "", "", (), sequence_id="1")), Request(), id="a sequence's"),
        pytest.param(Running(InferCall("m", "", "", (), uses_shared_memory=True)), Request(), id="in shared memory"),
        pytest.param(Running(permit=Permit(stays_in_region=True)), Request(), id="its tenant's stay"),
        pytest.param(Running(permit=Permit(is_in_background=True)), Request({"tidegate-hop": "r"}), id="a job's"),
        pytest.param(Running(), Request(size_bytes=MAX_BODY_BYTES + 1), id="a large one"),
        pytest.param(Running(), Request({"tidegate-hop": "anybody"}), id="another region's"),
    ],
)
async def test_some_never_leave(running: Running, request_: Request) -> None:
    bench = Bench()
    with pytest.raises(Overloaded):
        await bench.answer(Overloaded("busy"), running=running, request=request_)
    assert not bench.regions.asked_for


async def test_one_of_another_region_is_marked_and_a_jobs_is_not() -> None:
    bench, guest, job = Bench(), Running(), Running(permit=Permit(is_in_background=True))
    for running in (guest, job):
        await bench.answer(OURS, running=running, request=Request({"tidegate-hop": "there"}))
    assert (guest.permit.is_guest, job.permit.is_guest, bench.region_failover.guests) == (True, False, 1)


async def test_for_another_region_a_fleet_loads_nothing() -> None:
    fleet = Fleet()
    bench = Bench(dispatch=OnlyReady(fleet))
    with pytest.raises(ModelNotFound, match="not loaded in this region"):
        await bench.answer(OURS, request=Request({"tidegate-hop": "there"}))
    fleet.names.add("m")
    assert await bench.answer(OURS, request=Request({"tidegate-hop": "there"})) is OURS


@pytest.mark.parametrize(
    ("outcome", "sent_s", "told"),
    [
        pytest.param(UpstreamUnavailable("down"), None, UpstreamUnavailable, id="no server had it"),
        pytest.param(UpstreamUnavailable("unsent", is_not_sent=True), 1.0, UpstreamUnavailable, id="it was not sent"),
        pytest.param(UpstreamUnavailable("lost"), 1.0, UpstreamFailed, id="a process died of it"),
        pytest.param(UpstreamUnavailable("silent", recall=SILENT), 1.0, UpstreamFailed, id="it was taken back from a silent one"),
        pytest.param(UpstreamUnavailable("dead", recall=Recall(RecallCause.STUB_DIED)), 1.0, UpstreamFailed, id="its model's process died"),
        pytest.param(status_answer(14, "x", loss=SendFailure.CONNECTION_LOST), 1.0, UpstreamFailed, id="a process died of it, over gRPC"),
        pytest.param(Overloaded("busy"), None, Overloaded, id="no room"),
        pytest.param(ModelLoadFailed("corrupt"), None, ModelNotFound, id="a model that cannot be loaded"),
        pytest.param(QueryOfDeath("deadly"), 1.0, QueryOfDeath, id="processes have died of it"),
    ],
)
async def test_another_region_is_not_told_a_refusal_where_its_request_may_have_been_computed(
    outcome: Any, sent_s: float | None, told: type[ControlPlaneError]
) -> None:
    bench = Bench()
    with pytest.raises(told) as caught:
        await bench.answer(outcome, running=Running(sent_s=sent_s), request=Request({"tidegate-hop": "there"}))
    assert type(caught.value) is told


@pytest.mark.parametrize("outcome", [Overloaded("no room for a part"), status_answer(14, "x", loss=SendFailure.NOT_SENT)])
async def test_what_was_computed_in_part_stays(outcome: Any) -> None:
    bench = Bench()
    with pytest.raises(Overloaded) if isinstance(outcome, Overloaded) else nullcontext():
        assert await bench.answer(outcome, running=Running(is_computed_in_part=True)) is outcome
    assert not bench.regions.asked_for


async def test_while_no_server_answers_the_other_region_is_asked_first_and_this_one_if_it_refuses() -> None:
    bench = Bench()
    bench.servers.fell_silent()
    assert await bench.answer() is THEIRS
    assert not bench.times_s
    bench.regions.answer, bench.regions.takes = None, False
    bench.loop.call_later(1.0, bench.servers.heard)
    assert await bench.answer(OURS) is OURS
    bench.servers.fell_silent()
    bench.regions.is_any_well = False
    assert await bench.answer(OURS) is OURS
    assert bench.loop.time() == pytest.approx(1.0, abs=0.2)
    assert len(bench.regions.asked_for) == 2


@pytest.mark.parametrize(("is_repeatable", "expected"), [(True, THEIRS), (False, OURS)])
async def test_what_may_be_computed_twice_is_taken_back_from_a_server_that_falls_silent(is_repeatable: bool, expected: HttpAnswer) -> None:
    bench, work = Bench(), Slow(5.0)
    bench.loop.call_later(1.0, bench.servers.fell_silent)
    assert await bench.answer(running=Running(is_repeatable=is_repeatable), work=work) is expected
    assert work.cancelled == int(is_repeatable)


async def test_nothing_is_taken_back_where_nobody_else_is_well() -> None:
    bench, work = Bench(), Slow(5.0)
    bench.regions.is_any_well = False
    bench.loop.call_later(1.0, bench.servers.fell_silent)
    assert await bench.answer(running=Running(is_repeatable=True), work=work) is OURS
    assert not work.cancelled


async def test_what_was_taken_back_in_vain_is_computed_here_after_all() -> None:
    bench, work = Bench(), Slow(100.0, 1.0)
    bench.regions.answer = None
    bench.loop.call_later(1.0, bench.servers.fell_silent)
    bench.loop.call_later(2.0, bench.servers.heard)
    assert await bench.answer(running=Running(is_repeatable=True), work=work) is OURS
    assert bench.loop.time() == pytest.approx(3.0, abs=0.2)


async def test_what_finds_no_room_while_no_server_answers_leaves_as_soon_as_there_is_some() -> None:
    bench, running = Bench(), Running()
    bench.servers.fell_silent()
    bench.regions.answer, bench.regions.takes = None, False
    bench.loop.call_later(1.0, lambda: setattr(bench.regions, "takes", True))
    bench.loop.call_later(1.5, lambda: setattr(bench.regions, "answer", THEIRS))
    assert await bench.answer(running=running) is THEIRS
    assert bench.loop.time() == pytest.approx(1.6, abs=0.2)
    assert not bench.times_s, "the silent one was not sent it"
    assert len(bench.regions.asked_for) <= 1 + 7, "a region that would not take it is not asked"
    assert running.permit.places == 0


async def test_what_finds_no_room_anywhere_waits_no_longer_than_its_time_and_only_so_many_do() -> None:
    bench, running = Bench(), Running()
    bench.servers.fell_silent()
    bench.regions.answer = None
    with pytest.raises(DeadlineExceeded):
        await bench.answer(DeadlineExceeded("late"), running=running)
    assert bench.loop.time() == pytest.approx(10.0, abs=0.2)
    assert running.permit.places == 0
    with pytest.raises(Overloaded, match="too many wait"):
        await bench.answer(running=Running(permit=Permit(room=Overloaded("too many wait"))))


async def test_what_waits_for_a_silent_server_outlives_its_restart() -> None:
    bench = Bench()
    bench.servers.fell_silent()
    bench.regions.answer = None
    bench.loop.call_later(1.0, bench.servers.down, "it was ended")
    bench.loop.call_later(3.0, bench.servers.up, FakeUpstream())
    assert await bench.answer(OURS) is OURS
    assert bench.times_s == [pytest.approx(7.0, abs=0.2)]


@pytest.mark.parametrize(
    ("is_waiting", "takes", "expected"),
    [
        pytest.param(True, True, THEIRS, id="it waits for its turn"),
        pytest.param(True, False, OURS, id="nobody would take it"),
        pytest.param(False, True, OURS, id="it is computed"),
    ],
)
async def test_what_still_waits_leaves_while_there_is_time(is_waiting: bool, takes: bool, expected: HttpAnswer) -> None:
    bench, began_s = Bench(), asyncio.get_running_loop().time()
    bench.regions.takes = takes
    assert await bench.answer(running=Running(permit=Permit(is_waiting=is_waiting)), work=Slow(9.5)) is expected
    if expected is THEIRS:
        assert bench.loop.time() - began_s == pytest.approx(8.0)
        assert bench.regions.left_s == pytest.approx(2.0)


async def test_one_under_which_a_process_has_died_stays_whatever_it_is_refused_for_and_so_does_a_guilty_one() -> None:
    bench, poison, call = Bench(), Request(text="poison"), Running().call
    refused = Overloaded("model 'm' has lost its Python process and is being loaded anew; try again in 9.0 s")
    with pytest.raises(Overloaded, match="lost its Python process"):
        await bench.answer(refused, running=Running(is_suspect=True))
    await bench.dispatch.deaths.died(poison, call, "triton", suspect=None, is_stub=True)
    assert await bench.answer(refused, request=poison) is THEIRS, "it is only equal to a suspect"
    async with bench.dispatch.deaths.turn(poison, call, timeout_s=1.0) as suspect:
        with pytest.raises(QueryOfDeath):
            await bench.dispatch.deaths.died(poison, call, "triton", suspect=suspect, is_stub=True)
    with pytest.raises(Overloaded, match="lost its Python process"):
        await bench.answer(refused, request=poison)
    assert await bench.answer(refused, request=Request(text="innocent")) is THEIRS


async def test_a_caller_that_leaves_is_no_recall() -> None:
    bench, work = Bench(), Slow(100.0)
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(bench.answer(work=work))
        await settle()
        asking.cancel()
    assert asking.cancelled()
    assert not bench.regions.asked_for


@pytest.mark.parametrize(
    ("running", "is_any_well", "expected"),
    [
        pytest.param(Running(), True, True, id="it may"),
        pytest.param(Running(), False, False, id="nobody else is well"),
        pytest.param(Running(permit=Permit(stays_in_region=True)), True, False, id="its tenant's stay"),
        pytest.param(Running(is_suspect=True), True, False, id="a process has died under it"),
    ],
)
async def test_what_stays_is_known_while_it_is_computed(running: Running, is_any_well: bool, expected: bool) -> None:
    bench = Bench()
    bench.regions.is_any_well = is_any_well
    found: list[bool] = []

    async def work(timeout_s: float) -> HttpAnswer:
        found.append(bench.region_failover.may_leave(running))
        found.append(bench.region_failover.may_leave(Running(batch_of=running)))
        return OURS

    await bench.answer(running=running, work=work)
    assert found == [expected, expected]
    assert not bench.region_failover.may_leave(running), "it has ended"
