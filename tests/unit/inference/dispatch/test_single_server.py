"""Fate of requests whose only server dies, or has lost the stub of their model."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, Overloaded, QueryOfDeath, UpstreamUnavailable
from control_plane.core.infer_call import SendFailure
from control_plane.inference.dispatch.single_server import SingleServerDispatch
from control_plane.inference.retries.retry_budget import RetryKind
from control_plane.protocols.grpc import message_answer, status_answer
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers
from tests.aio import settle
from tests.fakes import FakeUpstream
from tests.unit.fleet.fleet_bench import READY, UNLOADING, call
from tests.unit.fleet.routing.dispatch_bench import Request
from tests.unit.fleet.routing.faults.losses_bench import BROKE_OFF, DEAD, NOT_SENT, repeatable
from tests.unit.inference.dispatch.single_server_bench import OK, Bench

pytestmark = pytest.mark.virtual_time


async def test_where_there_is_one_all_goes_there() -> None:
    servers, upstream = Servers(), FakeUpstream()
    upstream.control.states |= {"a": READY, "b": UNLOADING}
    one, request = SingleServerDispatch(servers, now_s=asyncio.get_running_loop().time), Request()
    with pytest.raises(UpstreamUnavailable, match="starting"):
        await one.reading("a", timeout_s=1.0)
    servers.up(upstream)
    await one.send(request, call("a"), timeout_s=3.0)
    request.answers.append(OK)
    await one.stream(request, call("a"), timeout_s=4.0)
    assert request.sent == [(upstream, 3.0), (upstream, 4.0)]
    async with one.server_for(call("a"), timeout_s=1.0) as server:
        assert server is upstream
    assert await one.reading("a", timeout_s=1.0) is upstream
    assert await one.ready() == {"a"}


@pytest.mark.parametrize(
    ("fault", "is_repeatable", "is_resent"),
    [
        pytest.param(NOT_SENT, False, True, id="it was not sent"),
        pytest.param(BROKE_OFF, True, True, id="it may be computed twice"),
        pytest.param(BROKE_OFF, False, False, id="it may have been computed"),
    ],
)
async def test_a_request_waits_for_the_next_triton_where_it_may_be_sent_again(
    fault: UpstreamUnavailable, is_repeatable: bool, is_resent: bool
) -> None:
    bench, request = Bench(), Request([fault, OK])
    bench.restart()
    if is_resent:
        assert (await bench.send(request, is_repeatable=is_repeatable)).status == 200
        assert [server for server, _ in request.sent] == bench.upstreams
        assert request.sent[1][1] == pytest.approx(26.9), "what is left of its time"
    else:
        with pytest.raises(UpstreamUnavailable):
            await bench.send(request, is_repeatable=is_repeatable)
        assert len(request.sent) == 1


async def test_a_loss_over_grpc_which_is_an_answer_is_resent_as_well() -> None:
    bench = Bench()
    bench.restart()
    lost = status_answer(14, "closed", loss=SendFailure.CONNECTION_LOST)
    assert (await bench.send(Request([lost, message_answer(b"x")]))).code == 0


async def test_one_that_does_not_come_back_in_time_is_told() -> None:
    bench, now_s = Bench(), asyncio.get_running_loop().time
    bench.restart(takes_s=60.0)
    began_s = now_s()
    with pytest.raises(UpstreamUnavailable, match="closed the connection"):
        await bench.send(Request([BROKE_OFF]), timeout_s=5.0)
    assert now_s() - began_s == pytest.approx(5.0)


async def test_nobody_waits_long_for_one_that_is_not_seen_to_end() -> None:
    bench, now_s = Bench(), asyncio.get_running_loop().time
    began_s = now_s()
    with pytest.raises(UpstreamUnavailable, match="cannot connect"):
        await bench.send(Request([NOT_SENT]))
    assert now_s() - began_s <= 1.0


STOPPING = make_answer(503, b"Server is stopping, scheduler for model has stopped accepting new inference requests")


@pytest.mark.parametrize("fault", [BROKE_OFF, STOPPING])
async def test_what_is_not_sent_again_takes_nothing_from_the_retry_budget(fault: object) -> None:
    bench = Bench()
    for _ in range(3):
        with suppress(UpstreamUnavailable):
            assert await bench.send(Request([fault])) is fault
    assert not bench.one.retries.counts
    bench.restart()
    assert await bench.send(Request([fault, OK])) is OK
    assert bench.one.retries.counts == {(RetryKind.RESEND, True): 1}


@pytest.mark.parametrize("answer", [DEAD, make_answer(503, b"Exceeds maximum queue size"), make_answer(404, b"")])
async def test_what_the_next_triton_would_answer_too_is_the_answer(answer: object) -> None:
    assert await Bench().send(Request([answer])) is answer


async def test_a_request_under_which_two_tritons_end_is_refused() -> None:
    bench = Bench()
    poison = Request([BROKE_OFF, BROKE_OFF], text="poison")
    bench.restart()
    bench.restart(after_s=4.0)
    poison.takes_s = 0.1
    with pytest.raises(QueryOfDeath, match="2 processes died under it"):
        await bench.send(poison)
    await asyncio.sleep(10.0)
    assert (await bench.send(Request(text="innocent"))).status == 200
    again = Request(text="poison")
    with pytest.raises(QueryOfDeath):
        await bench.send(again)
    assert not again.sent
    await asyncio.sleep(60.0)
    assert (await bench.send(Request(text="poison"))).status == 200


async def test_a_broken_connection_alone_is_no_death() -> None:
    bench = Bench()
    for _ in range(3):
        with pytest.raises(UpstreamUnavailable, match="closed"):
            await bench.send(Request([BROKE_OFF], text="the same"), is_repeatable=False)


@dataclass
class Stub:
    """Python process of model a, which dies under each request that says poison, and is revived at once."""

    bench: Bench
    revived_in_s: float
    deaths: int = 0
    is_alive: bool = True

    def __post_init__(self) -> None:
        self.bench.servers.suspect = lambda *_: None

    async def compute(self, text: str) -> HttpAnswer:
        """Triton says a second after a request was sent that its stub is dead."""
        if text == "poison" and self.is_alive:
            asyncio.get_running_loop().call_later(0.3, self._die)
        await asyncio.sleep(1.0)
        return OK if self.is_alive and text != "poison" else DEAD

    def _die(self) -> None:
        loop = asyncio.get_running_loop()
        self.deaths, self.is_alive = self.deaths + 1, False
        self.bench.servers.under_repair.show({"a": loop.time() + self.revived_in_s})
        loop.call_later(self.revived_in_s, self._revive)

    def _revive(self) -> None:
        self.is_alive = True
        self.bench.servers.under_repair.show({})


@dataclass
class StubRequest(Request):
    """Request that a stub answers."""

    stub: Stub = field(kw_only=True)

    def __post_init__(self) -> None:
        self.running = repeatable(True)
        self.running.sent = lambda server: setattr(self.running, "sent_s", asyncio.get_running_loop().time())

    async def send(self, server: Upstream, *, timeout_s: float) -> HttpAnswer:
        self.sent.append((server, timeout_s))
        return await self.stub.compute(self.text)

    async def ask(self, *, after_s: float = 0.0) -> HttpAnswer:
        await asyncio.sleep(after_s)
        answer: HttpAnswer = await self.stub.bench.one.send(self, call("a"), timeout_s=30.0, running=self.running)
        return answer


class TestQueriesOfDeathOfAStub:
    async def test_those_beside_one_are_answered_and_not_charged_for_waiting(self) -> None:
        stub = Stub(Bench(), revived_in_s=6.0)
        poison, *others = (StubRequest(stub=stub, text=text) for text in ("poison", "b", "c", "d"))
        asked = asyncio.gather(poison.ask(), *(each.ask(after_s=0.01) for each in others), return_exceptions=True)
        await asyncio.sleep(6.5)
        assert [each.running.sent_s is None for each in (poison, *others)] == [False, True, True, True], "they wait for their turns"
        outcome, *answers = await asked
        assert isinstance(outcome, QueryOfDeath)
        assert answers == [OK, OK, OK]
        assert stub.deaths == 2

    @pytest.mark.parametrize("revived_in_s", [0.9, 2.0, 6.0])
    async def test_the_second_death_is_seen_however_soon_the_stub_was_revived(self, revived_in_s: float) -> None:
        stub = Stub(Bench(), revived_in_s=revived_in_s)
        for _ in range(3):
            with pytest.raises(QueryOfDeath):
                await StubRequest(stub=stub, text="poison").ask()
        assert stub.deaths == 2

    async def test_a_stub_of_the_next_triton_is_another_one(self) -> None:
        bench = Bench()
        assert await bench.send(Request([DEAD], text="another")) == DEAD
        bench.servers.up(FakeUpstream())
        assert await bench.send(Request([DEAD], text="poison")) == DEAD
        bench.servers.up(FakeUpstream())
        with pytest.raises(QueryOfDeath):
            await bench.send(Request([DEAD], text="poison"))

    async def test_who_waited_for_its_turn_is_sent_to_the_triton_that_is_there_then(self) -> None:
        bench = Bench()
        first, second = Request([BROKE_OFF, BROKE_OFF], takes_s=0.1), Request([BROKE_OFF, OK], takes_s=0.1)
        bench.restart()
        bench.restart(after_s=3.2)
        outcome, answer = await asyncio.gather(bench.send(first), bench.send(second), return_exceptions=True)
        assert isinstance(outcome, QueryOfDeath)
        assert answer == OK
        assert [server for server, _ in second.sent] == [bench.upstreams[0], bench.upstreams[2]]


class TestModelsUnderRepair:
    async def test_a_request_waits_for_its_model_and_has_what_is_left_of_its_time(self) -> None:
        servers, request, now_s = Servers(), Request(), asyncio.get_running_loop().time
        servers.up(FakeUpstream())
        dispatch = SingleServerDispatch(servers, now_s=asyncio.get_running_loop().time)
        servers.under_repair.show({"a": now_s() + 0.1})
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_sent(dispatch, request, timeout_s=30.0))
            await _sent(dispatch, Request(), model="b")
            await settle()
            assert not waiting.done()
            servers.under_repair.show({"a": now_s() + 0.1, "c": now_s()})
            await settle()
            assert not waiting.done()
            await asyncio.sleep(0.1)
            servers.under_repair.show({"c": now_s()})
        assert 0 < request.sent[0][1] < 30.0

    async def test_one_that_has_no_time_for_that_is_told_when_it_will_be_there(self) -> None:
        servers = Servers()
        servers.up(FakeUpstream())
        servers.under_repair.show({"a": asyncio.get_running_loop().time() + 5.0})
        with pytest.raises(Overloaded, match=r"'a' has lost its Python process and is being loaded anew; try again in [45]\.\d s") as told:
            await _sent(SingleServerDispatch(servers, now_s=asyncio.get_running_loop().time), Request(), timeout_s=1.0)
        assert told.value.retry_after_s is not None
        assert 4.0 < told.value.retry_after_s <= 5.0
        with pytest.raises(Overloaded):
            async with SingleServerDispatch(servers, now_s=asyncio.get_running_loop().time).server_for(call("a"), timeout_s=1.0):
                pass

    async def test_who_asks_about_it_waits_too(self) -> None:
        servers, loop = Servers(), asyncio.get_running_loop()
        servers.up(FakeUpstream())
        dispatch = SingleServerDispatch(servers, now_s=loop.time)
        servers.under_repair.show({"a": loop.time() + 0.5})
        loop.call_later(0.5, servers.under_repair.show, {})
        with pytest.raises(Overloaded):
            await dispatch.reading("a", timeout_s=0.1)
        began_s = loop.time()
        await dispatch.reading("b", timeout_s=5.0)
        assert loop.time() == began_s
        await dispatch.reading("a", timeout_s=5.0)
        assert loop.time() == began_s + 0.5

    async def test_one_that_takes_longer_than_expected_is_waited_for_until_the_deadline(self) -> None:
        servers = Servers()
        servers.up(FakeUpstream())
        servers.under_repair.show({"a": asyncio.get_running_loop().time()})
        with pytest.raises(Overloaded):
            await _sent(SingleServerDispatch(servers, now_s=asyncio.get_running_loop().time), Request(), timeout_s=0.05)

    def test_a_model_that_left_repair_is_another_copy(self) -> None:
        under_repair = Servers().under_repair
        before = under_repair.copy_of("a")
        under_repair.show({"a": 2.0, "b": 2.0})
        assert under_repair.copy_of("a") == before
        under_repair.show({"b": 2.0})
        after = under_repair.copy_of("a")
        assert after != before
        under_repair.show({})
        assert under_repair.copy_of("a") == after

    def test_other_processes_are_told(self) -> None:
        servers, told = Servers(), list[object]()
        servers.under_repair.follow(told.append)
        servers.under_repair.show({"a": 2.0})
        assert told == [{"a": 2.0}]
        assert "a" in servers.under_repair
        assert "b" not in servers.under_repair


async def _sent(dispatch: SingleServerDispatch, request: Request, *, model: str = "a", timeout_s: float = 1.0) -> object:
    return await dispatch.send(request, call(model), timeout_s=timeout_s)


async def test_a_model_that_hangs_is_told_of_and_not_while_it_may_work_on_a_long_request() -> None:
    bench, told = Bench(), list[tuple[str, str, float]]()
    bench.servers.suspect = lambda *suspected: told.append(suspected)
    now_s = asyncio.get_running_loop().time

    async def ask(takes_s: float, came: object = OK) -> None:
        request = Request([came], takes_s)
        with suppress(ControlPlaneError):
            await bench.one.send(request, call("a"), timeout_s=60.0)

    await ask(0.1)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ask(4.0))
        await asyncio.sleep(2.0)
        assert list(bench.one.silence.awaited()) == [("triton", "a", pytest.approx(now_s() - 2.0))]
        await ask(0.8, DeadlineExceeded("late"))
        await ask(0.8, DeadlineExceeded("late"))
    assert not told, "it was at work on the first one"
    await ask(0.1)
    hangs_s = now_s()
    for _ in range(20):
        await ask(1.0, DeadlineExceeded("late"))
    assert told[0] == ("triton", "a", pytest.approx(hangs_s))
    told.clear()
    for _ in range(40):
        await ask(1.0, BROKE_OFF)
    assert not told, "a lost connection says nothing of the model"
    for _ in range(20):
        await ask(1.0, DeadlineExceeded("late"))
        await ask(1.0, BROKE_OFF)
    assert told, "nor that it answers"
    await ask(0.1)
    told.clear()
    for _ in range(10):
        await ask(1.0, DeadlineExceeded("late"))
        await ask(1.0, make_answer(500, b"the model's own error"))
    assert not told, "a model that fails requests answers"


async def test_what_was_taken_back_from_a_process_that_died_is_known_for_it() -> None:
    bench, loop = Bench(), asyncio.get_running_loop()
    bench.servers.suspect = lambda *suspected: None
    running, noted = repeatable(True), list[bool]()
    running.note_death = lambda: noted.append(True)
    loop.call_later(0.1, bench.servers.under_repair.show, {"a": loop.time() + 90.0})
    with pytest.raises(Overloaded, match="lost its Python process"):
        await bench.one.send(Request([OK], takes_s=5.0), call("a"), timeout_s=30.0, running=running)
    assert noted


@pytest.mark.parametrize("may_leave", [True, False])
async def test_what_was_not_sent_waits_for_the_next_triton_unless_another_region_may_take_it(may_leave: bool) -> None:
    bench, request = Bench(), Request([NOT_SENT, OK])
    bench.one.may_leave = lambda running: may_leave
    bench.restart()
    if may_leave:
        with pytest.raises(UpstreamUnavailable) as caught:
            await bench.send(request)
        assert caught.value.is_not_sent
    else:
        assert (await bench.send(request)).status == 200
