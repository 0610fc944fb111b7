"""The other regions of one process, before links that answer as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from control_plane.core.endpoints import TcpAddress
from control_plane.core.errors import QueryOfDeath, UpstreamUnavailable
from control_plane.core.infer_call import Frontend
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.requests import InferRequest
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.regions.domain.region import Region
from control_plane.regions.domain.verdict import RegionVerdict
from control_plane.regions.regions import PROBE_EVERY_S, PROBE_TIMEOUT_S, Regions
from control_plane.triton.ports import HttpStream
from tests.aio import settle
from tests.fakes import FakeHttpStream
from tests.unit.regions.regions_bench import Link

pytestmark = pytest.mark.virtual_time

LOST = UpstreamUnavailable("the connection was lost")
NOT_SENT = UpstreamUnavailable("nobody listens", is_not_sent=True)


@dataclass
class Request:
    """Request that is answered by its link's `answer`, after a while."""

    takes_s: float = 0.02

    async def send_on(self, link: Link, *, timeout_s: float) -> HttpAnswer:
        link.got.append(timeout_s)
        await asyncio.sleep(self.takes_s)
        return link.answer()

    def with_field(self, answer: HttpAnswer, name: str, value: str) -> HttpAnswer:
        return HttpAnswer(answer.status, value.encode(), answer.body)


class Streaming(Request):
    """Request with a streamed answer."""

    def with_field(self, answer: HttpAnswer, name: str, value: str) -> HttpAnswer:
        return answer


@dataclass
class Principal:
    tenant: str = "t"


@dataclass
class Running:
    is_repeatable: bool = True
    named_model: str = "m"
    principal: Principal = field(default_factory=Principal)
    frontend: Frontend = Frontend.HTTP
    region: str = ""

    def answered_in(self, region: str) -> None:
        self.region = region


@dataclass
class Bench:
    links: dict[str, Link]
    regions: Regions

    async def ask(
        self, running: Running | None = None, request: Request | None = None, *, left_s: float = 1.0, is_model_missing: bool = False
    ) -> HttpAnswer | None:
        self.regions.asked()
        asked = cast("InferRequest[HttpAnswer]", request or Request())
        whose = cast("AuthorizedRequest", running or Running())
        return await self.regions.ask(asked, whose, left_s=left_s, is_model_missing=is_model_missing)


@asynccontextmanager
async def bench(**links: Link) -> AsyncIterator[Bench]:
    listed = [(Region(name, TcpAddress(name, 1), TcpAddress(name, 2)), link) for name, link in links.items()]
    regions = Regions(listed, now_s=asyncio.get_running_loop().time)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(regions.run())
        await asyncio.sleep(0.5)
        yield Bench(links, regions)
        running.cancel()
    assert all(link.is_closed for link in links.values())


def fails(error: Exception) -> Callable[[], HttpAnswer]:
    def answer() -> HttpAnswer:
        raise error

    return answer


async def test_the_nearest_answers_and_its_name_is_noted() -> None:
    async with bench(far=Link(0.2), near=Link(0.05)) as made:
        running = Running()
        answer = await made.ask(running)
        assert answer is not None
        assert (answer.head, running.region) == (b"near", "near")
        assert made.links["near"].got == [pytest.approx(0.95)], "the way takes some of its time"
        assert made.regions.totals == {("near", RegionVerdict.ANSWERED): 1}


async def test_one_that_freezes_is_noticed_within_two_seconds_and_its_requests_are_given_up() -> None:
    async with bench(one=Link()) as made:
        loop, frozen = asyncio.get_running_loop(), Request(takes_s=1000.0)
        made.links["one"].is_silent = True
        began_s = loop.time()
        assert await made.ask(request=frozen, left_s=500.0) is None
        assert loop.time() - began_s <= PROBE_EVERY_S + PROBE_TIMEOUT_S
        assert not made.regions.is_any_well
        assert await made.ask() is None, "it gets no more"
        made.links["one"].is_silent = False
        await asyncio.sleep(2.5)
        assert await made.ask() is not None, "it is well again"


async def test_what_may_not_be_computed_twice_fails_where_it_may_have_been() -> None:
    async with bench(one=Link(answer=fails(LOST))) as made:
        with pytest.raises(UpstreamUnavailable, match="region one was lost"):
            await made.ask(Running(is_repeatable=False))
        assert await made.ask(Running(named_model="n")) is None


@pytest.mark.parametrize("status", [500, 502])
async def test_what_may_not_be_computed_twice_fails_where_it_failed(status: int) -> None:
    async with bench(one=Link(answer=lambda: make_answer(status))) as made:
        with pytest.raises(UpstreamUnavailable, match="region one has failed the request, which it may have computed"):
            await made.ask(Running(is_repeatable=False))
        assert await made.ask(Running(named_model="n")) is None


@pytest.mark.parametrize(
    ("stream", "is_used"),
    [
        (FakeHttpStream(), True),
        (FakeHttpStream(status=502), False),
        (FakeHttpStream(head=b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n"), False),
    ],
)
async def test_a_stream_that_is_no_answer_is_closed(stream: FakeHttpStream, is_used: bool) -> None:
    async with bench(east=Link(answer=lambda: cast("HttpAnswer", stream))) as it:
        assert (await it.ask(request=Streaming()) is not None) == is_used
    assert stream.closed.is_set() != is_used


async def test_a_stream_is_in_flight_there_until_it_is_closed() -> None:
    async with bench(east=Link(answer=lambda: cast("HttpAnswer", FakeHttpStream()))) as it:
        [standing] = it.regions.standings
        standing.window.size = 1.0
        begun = cast("HttpStream", await it.ask(request=Streaming()))
        standing.window.size = 1.0
        assert standing.in_flight == 1
        assert await it.ask(request=Streaming()) is None, "there is no room beside it"
        begun.close()
        begun.close()
        assert standing.in_flight == 0
        assert await it.ask(request=Streaming()) is not None


async def test_what_processes_have_died_of_there_does_not_come_back() -> None:
    async with bench(one=Link(answer=lambda: make_answer(422))) as made:
        with pytest.raises(QueryOfDeath, match="in region one"):
            await made.ask(Running(is_repeatable=True))


async def test_a_port_that_cannot_be_reached_is_left_alone_and_the_other_one_is_not() -> None:
    async with bench(one=Link(answer=fails(NOT_SENT))) as made:
        link, over_grpc = made.links["one"], Running(is_repeatable=False, frontend=Frontend.GRPC)
        assert await made.ask(over_grpc) is None, "it was not sent"
        for _ in range(100):
            await made.ask(over_grpc)
        assert len(link.got) == 1
        assert made.regions.is_any_well, "its probes say whether it is: one of its two ports may be wrong"
        link.answer = lambda: make_answer(200)
        assert await made.ask(Running()) is not None
        await asyncio.sleep(1.0)
        assert await made.ask(over_grpc) is not None


@pytest.mark.parametrize(
    ("status", "others_may", "for_s"),
    [
        pytest.param(401, "model of another tenant", 60.0, id="its key is not valid there"),
        pytest.param(403, "other model", 60.0, id="it may not call that model there"),
        pytest.param(404, "other model", 30.0, id="the model is not there"),
        pytest.param(429, "model of another tenant", 1.0, id="its limits there are used up"),
        pytest.param(400, "other model", 1.0, id="it is wrong there"),
        pytest.param(500, "other model", 1.0, id="it fails there"),
    ],
)
async def test_a_caller_that_is_refused_is_left_out_for_a_while_and_others_are_not(status: int, others_may: str, for_s: float) -> None:
    async with bench(one=Link()) as made:
        made.links["one"].answer = lambda: make_answer(status)
        assert await made.ask() is None
        made.links["one"].answer = lambda: make_answer(200)
        assert await made.ask() is None
        other = Running(named_model="n") if others_may == "other model" else Running(principal=Principal("u"))
        assert await made.ask(other) is not None
        await asyncio.sleep(for_s)
        assert await made.ask() is not None


async def test_one_that_is_full_is_left_alone_by_all_for_a_moment() -> None:
    async with bench(one=Link()) as made:
        made.links["one"].answer = lambda: make_answer(503)
        assert await made.ask() is None
        assert await made.ask(Running(principal=Principal("u"), named_model="n")) is None
        assert len(made.links["one"].got) == 1
        (standing,) = made.regions.standings
        assert made.regions.full_for_s(standing) > 0
        await asyncio.sleep(0.1)
        assert not made.regions.full_for_s(standing)
        await made.ask()
        assert len(made.links["one"].got) == 2


async def test_two_full_regions_exchange_next_to_nothing() -> None:
    async with bench(one=Link(answer=lambda: make_answer(503))) as made:
        for _ in range(1000):
            await made.ask(request=Request(takes_s=0.0))
            await asyncio.sleep(0.01)
        assert len(made.links["one"].got) <= 12


async def test_names_of_models_that_are_nowhere_leave_one_by_one() -> None:
    async with bench(one=Link(answer=lambda: make_answer(404))) as made:
        for number in range(100):
            await made.ask(Running(named_model=str(number)), Request(takes_s=0.0), is_model_missing=True)
        assert len(made.links["one"].got) == 1


async def test_a_model_that_is_known_to_be_there_is_asked_for_as_often_as_callers_do() -> None:
    async with bench(one=Link()) as made:
        assert await made.ask(is_model_missing=True) is not None
        for _ in range(100):
            await made.ask(request=Request(takes_s=0.0), is_model_missing=True)
        assert len(made.links["one"].got) == 101
        made.links["one"].answer = lambda: make_answer(404)
        await made.ask(is_model_missing=True)
        for tenant in range(100):
            await made.ask(Running(principal=Principal(str(tenant))), Request(takes_s=0.0), is_model_missing=True)
        assert len(made.links["one"].got) <= 103, "it is not there any more"


async def test_only_one_region_is_asked() -> None:
    async with bench(near=Link(0.01, answer=lambda: make_answer(503)), far=Link(0.1)) as made:
        assert await made.ask() is None
        assert not made.links["far"].got


async def test_a_caller_that_leaves_takes_its_request_along() -> None:
    async with bench(one=Link()) as made:
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(made.ask(request=Request(takes_s=100.0), left_s=500.0))
            await settle()
            assert made.regions.standings[0].in_flight == 1
            asking.cancel()
        assert made.regions.standings[0].in_flight == 0
        assert made.regions.totals == {("one", RegionVerdict.LEFT): 1}


async def test_one_that_says_that_it_is_not_ready_gets_nothing_new_and_keeps_what_it_has() -> None:
    async with bench(one=Link()) as made:
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(made.ask(request=Request(takes_s=5.0), left_s=50.0))
            await settle()
            made.links["one"].error = UpstreamUnavailable("it says that it is not ready (HTTP 503)")
            await asyncio.sleep(3.0)
            assert made.regions.standings[0].why_not == "it says that it is not ready (HTTP 503)"
            assert await made.ask() is None
        assert asking.result() is not None


async def test_more_than_its_share_is_not_sent() -> None:
    region = Region("one", TcpAddress("one", 1), TcpAddress("one", 2), max_share=0.1)
    link = Link()
    regions = Regions([(region, link)], now_s=asyncio.get_running_loop().time)
    regions.standings[0].heard(0.01)
    made = Bench({"one": link}, regions)
    for _ in range(500):
        await made.ask(request=Request(takes_s=0.0))
    assert 50 <= len(link.got) <= 70
