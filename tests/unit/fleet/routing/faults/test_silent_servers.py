"""Fate of requests at servers that say nothing; over fake Tritons."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.infer_call import InferCall, Outcome
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.inference.domain.retry_budget import ServerLoss
from control_plane.inference.retries.retry_budget import RetryKind
from control_plane.protocols.http1 import make_answer
from control_plane.triton.ports import Upstream
from tests.unit.fleet.fleet_bench import READY, FleetBench, call, model, running
from tests.unit.fleet.routing.dispatch_bench import idle, status
from tests.unit.fleet.routing.faults.losses_bench import repeatable

pytestmark = pytest.mark.virtual_time

OK = make_answer(200, b"")


class Frozen:
    """Requests that a server answers only while it is not frozen."""

    def __init__(self, bench: FleetBench, *, is_repeatable: bool = True) -> None:
        self._bench = bench
        self._is_repeatable = is_repeatable
        self.thaw = asyncio.Event()
        self.frozen = bench.servers.get("s0")
        self.sent: list[Upstream] = []

    async def send(self, server: Upstream, *, timeout_s: float) -> Any:
        self.sent.append(server)
        await asyncio.sleep(0.01)
        if server is self.frozen:
            await self.thaw.wait()
        return OK

    def content(self, call: InferCall) -> tuple[bytes, ...]:
        return (b"frozen",)

    def outcome(self, answer: Any) -> Any:
        return Outcome.ANSWERED

    async def ask(self) -> Any:
        running = repeatable(self._is_repeatable)
        return await self._bench.dispatch.send(self, call("a"), timeout_s=60.0, running=running)  # type: ignore[arg-type]


async def ready_on(bench: FleetBench, *names: str) -> None:
    for name in names:
        bench.tritons[name].states["a"] = READY
        await bench.loads[name].poll_index()


async def begun(bench: FleetBench, work: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
    await asyncio.sleep(0.1)
    return task


async def test_a_request_in_flight_is_sent_again_to_another_server_at_once() -> None:
    async with running(FleetBench(servers=2)) as bench:
        await ready_on(bench, "s0")
        request = Frozen(bench)
        asked = await begun(bench, request.ask())
        await ready_on(bench, "s1")
        assert not asked.done()
        silent_s = bench.now_s()
        bench.servers.members["s0"].fell_silent()
        assert status(await asked) == 200
        assert bench.now_s() - silent_s < 0.1
        assert request.sent == [bench.servers.get("s0"), bench.servers.get("s1")]
        assert idle(bench)


async def test_one_that_may_not_be_sent_again_waits_and_is_answered_after_the_silence() -> None:
    async with running(FleetBench(servers=2)) as bench:
        await ready_on(bench, "s0")
        request = Frozen(bench, is_repeatable=False)
        asked = await begun(bench, request.ask())
        await ready_on(bench, "s1")
        bench.servers.members["s0"].fell_silent()
        await asyncio.sleep(5.0)
        assert not asked.done()
        request.thaw.set()
        bench.servers.members["s0"].heard()
        assert status(await asked) == 200
        assert len(request.sent) == 1


async def test_without_another_replica_it_waits_until_there_is_one() -> None:
    async with running(FleetBench(servers=2)) as bench:
        await ready_on(bench, "s0")
        request = Frozen(bench)
        asked = await begun(bench, request.ask())
        bench.servers.members["s0"].fell_silent()
        await asyncio.sleep(2.0)
        assert not asked.done()
        await ready_on(bench, "s1")
        assert status(await asked) == 200
        assert request.sent[-1] is bench.servers.get("s1")


async def test_a_caller_that_leaves_is_none_that_is_sent_again() -> None:
    async with running(FleetBench(servers=2)) as bench:
        await ready_on(bench, "s0")
        request = Frozen(bench)
        asked = await begun(bench, request.ask())
        await ready_on(bench, "s1")
        asked.cancel()
        bench.servers.members["s0"].fell_silent()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert len(request.sent) == 1
        assert idle(bench)


async def test_no_request_begins_at_a_silent_server_and_the_first_after_it_may() -> None:
    async with running(FleetBench(servers=2)) as bench:
        await ready_on(bench, "s0", "s1")
        bench.servers.members["s0"].fell_silent()
        assert {await bench.use("a") for _ in range(20)} == {"s1"}
        bench.servers.members["s0"].heard()
        assert "s0" in {await bench.use("a") for _ in range(20)}


async def test_the_only_replica_is_used_and_after_as_long_as_a_load_takes_another_one_is_loaded() -> None:
    async with running(FleetBench(servers=2)) as bench:
        await ready_on(bench, "s0")
        bench.state.fleet.models["a"].load_s = 3.0
        bench.servers.members["s0"].fell_silent()
        assert await bench.use("a") == "s0"
        assert not bench.said
        await asyncio.sleep(4.0)
        await bench.use("a")
        await asyncio.sleep(2.0)
        assert bench.said == ["load a"]
        assert await bench.use("a") == "s1"


async def test_nothing_is_loaded_onto_a_silent_server_and_no_look_waits_for_it() -> None:
    async with running(FleetBench(model("a", min_replicas=1), servers=2), reconciles=True) as bench:
        bench.servers.members["s0"].fell_silent()
        bench.tritons["s0"].failures["index"] = ZeroDivisionError()  # type: ignore[assignment]
        await asyncio.sleep(3.0)
        assert bench.state.fleet.holders["a"].keys() == {"s1"}


async def test_a_slow_index_holds_up_nothing_but_itself() -> None:
    async with running(FleetBench(model("a", min_replicas=1), model("b"), servers=2), reconciles=True) as bench:
        await asyncio.sleep(1.0)
        asked, index = list[float](), bench.tritons["s0"].index

        async def slow() -> Any:
            asked.append(bench.now_s())
            await asyncio.sleep(4.0)
            return await index()

        bench.tritons["s0"].index = slow  # type: ignore[method-assign]
        await asyncio.sleep(1.0)
        bench.tritons["s1"].states["b"] = READY
        await asyncio.sleep(1.0)
        assert "b" in bench.server("s1").replicas
        await asyncio.sleep(8.0)
        assert len(asked) == 3, "one after the other"


async def test_what_met_a_silence_neither_ejects_the_server_nor_counts_as_its_time() -> None:
    async with running(FleetBench(servers=3)) as bench:
        await ready_on(bench, "s0", "s1", "s2")
        service_s = bench.state.fleet.models["a"].service_s
        claims = [bench.state.reserve("a", "s0") for _ in range(20)]
        await asyncio.sleep(1.0)
        bench.servers.members["s0"].fell_silent()
        for number, claim in enumerate(claims):
            assert claim is not None
            if number == 10:
                await asyncio.sleep(5.0)
                bench.servers.members["s0"].heard()
            claim.release(answered=number > 10)
            if number % 3:
                bench.state.ejection.gave_up(claim)
            elif number % 2:
                bench.router.lost(claim, is_gone=False)
            else:
                bench.router.answered(call("a"), claim)
        bench.state.ejection.judge()
        assert not bench.server("s0").is_ejected
        assert bench.state.fleet.models["a"].service_s == service_s
        await asyncio.sleep(0.1)
        later = bench.state.reserve("a", "s0")
        assert later is not None
        bench.router.lost(later, is_gone=False)
        assert bench.server("s0").is_ejected, "a failure after it counts again"


async def test_it_is_an_event_each_time_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        bench = FleetBench(servers=2)
        bench.state.events._logs = True
        for _ in range(2):
            bench.servers.members["s1"].fell_silent()
            await asyncio.sleep(3.0)
            bench.servers.members["s1"].heard()
        assert [(each.kind, each.server, each.seconds) for each in bench.state.events.latest] == [
            (FleetEventKind.SILENT, "s1", 0.0),
            (FleetEventKind.ANSWERING, "s1", pytest.approx(3.0)),
        ] * 2
        assert bench.state.counts.events[FleetEventKind.SILENT] == 2
    assert "server s1 is silent: it says nothing; requests go to other servers" in caplog.text
    assert "server s1 is answering after 3.0 s" in caplog.text


async def test_one_that_goes_down_is_not_silent_and_comes_back_as_one_that_answers() -> None:
    bench = FleetBench(servers=2)
    bench.servers.members["s0"].fell_silent()
    bench.kill("s0")
    assert not bench.server("s0").is_silent
    bench.bring_up("s0")
    assert not bench.server("s0").is_silent
    assert bench.servers.members["s0"].is_answering


async def test_an_error_beside_a_silent_server_is_the_answer_at_once() -> None:
    full = make_answer(503, b"Exceeds maximum queue size")

    class Full(Frozen):
        async def send(self, server: Upstream, *, timeout_s: float) -> Any:
            answer = await super().send(server, timeout_s=timeout_s)
            return full if server is not self.frozen else answer

        def outcome(self, answer: Any) -> Any:
            return Outcome.UNAVAILABLE

    async with running(FleetBench(servers=2)) as bench:
        await ready_on(bench, "s0", "s1")
        bench.servers.members["s0"].fell_silent()
        request, began_s = Full(bench), bench.now_s()
        assert await request.ask() is full
        assert bench.now_s() - began_s < 1.0
        assert request.sent == [bench.servers.get("s1")]


async def test_one_that_the_retry_budget_denies_is_not_taken_back_and_is_answered_after_the_silence() -> None:
    async with running(FleetBench(servers=2)) as bench:
        await ready_on(bench, "s0")
        requests = [Frozen(bench) for _ in range(5)]
        bench.dispatch.retries._loss = ServerLoss("s1", bench.now_s())  # debts are for one server at a time
        asked = [await begun(bench, request.ask()) for request in requests]
        await ready_on(bench, "s1")
        silent_s = bench.now_s()
        bench.servers.members["s0"].fell_silent()
        await asyncio.sleep(0.1)
        assert [task.done() for task in asked].count(True) == 1, "the one to spare"
        while not all(task.done() for task in asked[:3]):
            await asyncio.sleep(0.1)
        assert bench.now_s() - silent_s > 1.0, "another one a second"
        assert not asked[4].done()
        for request in requests:
            request.thaw.set()
        bench.servers.members["s0"].heard()
        assert [status(each) for each in await asyncio.gather(*asked)] == [200] * 5
        assert len(requests[4].sent) == 1
        assert idle(bench)


async def test_one_that_is_taken_back_is_charged_once() -> None:
    async with running(FleetBench(servers=2)) as bench:
        await ready_on(bench, "s0")
        asked = [await begun(bench, Frozen(bench).ask()) for _ in range(5)]
        await ready_on(bench, "s1")
        bench.servers.members["s0"].fell_silent()
        await asyncio.gather(*asked)
        assert bench.dispatch.retries.counts == {(RetryKind.RESEND, True): 5}


async def test_a_request_may_go_back_to_a_server_that_answers_again() -> None:
    class Slow(Frozen):
        async def send(self, server: Upstream, *, timeout_s: float) -> Any:
            self.sent.append(server)
            await asyncio.sleep(3.0)
            return OK

    async with running(FleetBench(servers=2)) as bench:
        await ready_on(bench, "s0")
        request = Slow(bench)
        asked = await begun(bench, request.ask())
        await ready_on(bench, "s1")
        for silent, other in ("s0", "s1"), ("s1", "s0"):
            bench.servers.members[silent].fell_silent()
            await asyncio.sleep(1.0)
            assert request.sent[-1] is bench.servers.get(other)
            bench.servers.members[silent].heard()
            await asyncio.sleep(0.1)
        assert status(await asked) == 200
        assert len(request.sent) == 3


async def test_a_recall_says_which_server_was_silent_where_nothing_else_can_be_done() -> None:
    async with running(FleetBench(servers=2)) as bench:
        await ready_on(bench, "s0")
        claim = bench.state.reserve("a", "s0")
        assert claim is not None

        async def hang(server: Upstream, *, timeout_s: float) -> None:
            await asyncio.sleep(timeout_s)

        waiting = await begun(bench, bench.state.recalls.recallable(hang, claim, lambda cause: True)(claim.upstream, timeout_s=60.0))
        await ready_on(bench, "s1")
        bench.servers.members["s0"].fell_silent()
        with pytest.raises(UpstreamUnavailable, match="server 's0' says nothing"):
            await waiting
        claim.release(answered=False)
