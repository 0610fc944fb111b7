"""The requests of a connection are answered in order, and what ends one of them is its answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from control_plane.core.errors import GatewayStopping
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.caller import timeout_s_of
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.common.read_scheduler import MOST_BEGUN
from control_plane.frontends.http.answers.loop import AnswerLoop
from control_plane.frontends.http.answers.writer import AnswerWriter
from control_plane.frontends.http.limits import HttpLimits
from control_plane.frontends.http.requests.body_stream import BodyStream
from control_plane.frontends.http.server import HttpServer
from control_plane.protocols.http1 import BodyPieces, HttpAnswer, HttpRequest, make_answer
from tests.aio import hold_up, settle
from tests.unit.frontends.frontend_ends import Transport

LIMITS = HttpLimits(max_body_bytes=1000, max_header_bytes=16 << 10, max_connections=10)
HELD = 100


@dataclass
class Intake:
    """Reading side that notes what the loop tells it; `arriving` is the body that is not whole yet."""

    arriving: BodyPieces | None = None
    told: list[str] = field(default_factory=list)

    def read_on(self) -> None:
        self.told.append("read on")

    def receive(self, stream: BodyPieces) -> None:
        self.told.append("receive")

    def cut_off(self, stream: BodyPieces) -> bool:
        return stream is self.arriving

    def abort(self) -> None:
        self.told.append("abort")


class Nothing:
    """Request of another connection."""

    def begin(self) -> None: ...


@dataclass
class Bench:
    loop: AnswerLoop
    task: asyncio.Task[None]
    budget: BodyBudget
    transport: Transport
    intake: Intake
    may_answer: asyncio.Event
    server: HttpServer
    asked: list[HttpRequest]
    """The requests whose work has begun."""

    def add(self, target: bytes, stream: BodyPieces | None = None, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        assert self.budget.try_acquire(HELD)
        self.loop.add(HttpRequest(b"GET", target, list(headers), stream=stream), keep_alive=True, held_bytes=HELD)


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    may_answer, budget, transport, intake = asyncio.Event(), BodyBudget(1000), Transport(), Intake()

    asked: list[HttpRequest] = []

    async def answer(request: HttpRequest) -> HttpAnswer:
        asked.append(request)
        await may_answer.wait()
        return make_answer(200, request.target)

    server = HttpServer(answer, render_error, LIMITS, budget=budget)
    writer = AnswerWriter(server.writes, [None])
    writer.begin(transport)
    loop = AnswerLoop(server, writer, intake)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(loop.run())
        yield Bench(loop, task, budget, transport, intake, may_answer, server, asked)
        task.cancel()


async def test_requests_and_refusals_are_answered_in_order() -> None:
    async with bench() as it:
        it.add(b"/one")
        it.add(b"/two")
        it.loop.add_refusal(make_answer(400, b"refused"))
        await settle()
        assert (it.loop.is_busy, it.transport.written) == (True, b"")
        it.may_answer.set()
        await settle()
        assert re.findall(rb"/one|/two|refused|Connection: close", it.transport.written) == [
            b"/one",
            b"/two",
            b"Connection: close",
            b"refused",
        ]
        assert (it.task.done(), it.loop.is_busy, it.budget.held_bytes) == (True, False, 0)


async def test_more_is_read_when_all_has_been_answered() -> None:
    async with bench() as it:
        await settle()
        it.add(b"/one")
        it.add(b"/two")
        await settle()
        assert it.intake.told == ["read on"]
        it.may_answer.set()
        await settle()
        assert it.intake.told == ["read on"] * 2


async def test_the_request_in_flight_is_answered_by_what_ends_it() -> None:
    async with bench() as it:
        assert not it.loop.end_request(GatewayStopping(), it.task)
        it.add(b"/one")
        await settle()
        assert it.loop.end_request(GatewayStopping(), it.task)
        await settle()
        assert it.transport.written.startswith(b"HTTP/1.1 503 ")
        assert it.budget.held_bytes == 0


async def test_a_request_that_waits_to_begin_is_answered_by_what_ends_it() -> None:
    async with bench() as it:
        await settle()
        for _ in range(2 * MOST_BEGUN):  # of other connections, of which many begin in this turn
            cast("dict[object, str]", it.server._connections)[object()] = ""
            it.server.reads.begin(Nothing())
        it.add(b"/one")
        assert it.loop.end_request(GatewayStopping(), it.task)
        await settle()
        assert it.transport.written.startswith(b"HTTP/1.1 503 ")
        assert (it.task.done(), it.budget.held_bytes) == (True, 0)


@pytest.mark.virtual_time
async def test_what_a_request_has_waited_to_begin_is_part_of_its_time() -> None:
    async with bench() as it:
        await settle()
        for _ in range(2 * MOST_BEGUN):
            cast("dict[object, str]", it.server._connections)[object()] = ""
            it.server.reads.begin(Nothing())
        it.add(b"/one", headers=[(b"tidegate-timeout-ms", b"1000")])
        hold_up(0.05)  # the turn takes so long
        await settle()
        (request,) = it.asked
        timeout_s = timeout_s_of(request)
        assert timeout_s is not None
        assert timeout_s == pytest.approx(0.95)
        it.may_answer.set()


async def test_a_cancelled_request_has_no_answer() -> None:
    async with bench() as it:
        it.add(b"/one")
        it.add(b"/two")
        await settle()
        it.task.cancel()
        it.loop.drop()
        await settle()
        assert (it.task.cancelled(), it.transport.written, it.budget.held_bytes) == (True, b"", 0)


@pytest.mark.parametrize("is_whole", [pytest.param(True, id="whole"), pytest.param(False, id="still arriving")])
async def test_nothing_follows_a_request_that_was_answered_before_its_body_was_whole(is_whole: bool) -> None:
    async with bench() as it:
        stream = BodyStream(it.intake.read_on)
        it.intake.arriving = None if is_whole else stream
        it.may_answer.set()
        it.add(b"/upload", stream=stream)
        await settle()
        assert "receive" in it.intake.told
        assert (b"Connection: close" in it.transport.written, it.task.done()) == (not is_whole, not is_whole)


async def test_the_loop_ends_after_the_answer_in_flight_when_its_connection_leaves() -> None:
    async with bench() as it:
        it.add(b"/one")
        await settle()
        it.loop.is_leaving = True
        it.may_answer.set()
        await settle()
        assert b"/one" in it.transport.written
        assert it.task.done()
