"""Fate of requests whose server dies, hangs, or has lost the stub of their model; over fake Tritons."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from control_plane.core.errors import DeadlineExceeded, ModelLoadFailed, Overloaded, UpstreamFailed, UpstreamUnavailable
from control_plane.core.infer_call import Outcome, SendFailure
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.protocols.grpc import message_answer, status_answer
from control_plane.protocols.http1 import HttpAnswer, make_answer
from tests.fakes import FakeHttpStream
from tests.unit.fleet.fleet_bench import LOADING, READY, FleetBench, call, model, running
from tests.unit.fleet.routing.dispatch_bench import Request, idle, send, status
from tests.unit.fleet.routing.faults.losses_bench import BROKE_OFF, DEAD, NOT_SENT, both_ready, repeatable

pytestmark = pytest.mark.virtual_time
GRPC_UNSENT = status_answer(14, "cannot connect", loss=SendFailure.NOT_SENT)
GRPC_BROKE_OFF = status_answer(14, "closed", loss=SendFailure.CONNECTION_LOST)


@dataclass
class GrpcRequest(Request):
    def outcome(self, answer: Any) -> Outcome:
        return {0: Outcome.ANSWERED, 14: Outcome.UNAVAILABLE}[answer.code]


class TestServersThatDie:
    @pytest.mark.parametrize("request_", [Request([NOT_SENT, make_answer(200, b"")]), GrpcRequest([GRPC_UNSENT, message_answer(b"x")])])
    async def test_what_was_not_sent_goes_to_another_server(self, request_: Request) -> None:
        async with running(FleetBench(servers=2)) as bench:
            await both_ready(bench)
            answer = await send(bench, request_)
            assert request_.outcome(answer) is Outcome.ANSWERED
            (first, _), (second, _) = request_.sent
            assert first is not second
            assert idle(bench)

    async def test_where_nobody_else_has_its_model_it_is_loaded_elsewhere(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            home = await bench.use("a")
            request = Request([NOT_SENT, make_answer(200, b"")])
            assert status(await send(bench, request)) == 200
            assert [server for server in bench.state.fleet.holders["a"] if server != home]
            assert request.sent[1][1] < 59.5, "with what is left of its time"

    @pytest.mark.parametrize(
        ("loss", "is_repeatable", "sends"),
        [
            pytest.param(BROKE_OFF, True, 2, id="equal requests have equal answers"),
            pytest.param(BROKE_OFF, False, 1, id="it may have been computed"),
            pytest.param(NOT_SENT, False, 2, id="it cannot have been"),
        ],
    )
    async def test_what_may_have_been_computed_is_sent_again_only_where_that_does_no_harm(
        self, loss: UpstreamUnavailable, is_repeatable: bool, sends: int
    ) -> None:
        async with running(FleetBench(servers=2)) as bench:
            await both_ready(bench)
            request = Request([loss, make_answer(200, b"")])
            work = bench.dispatch.send(request, call("a"), timeout_s=5.0, running=repeatable(is_repeatable))  # type: ignore[arg-type]
            if sends == 1:
                with pytest.raises(UpstreamUnavailable):
                    await work
            else:
                assert status(await work) == 200
            assert len(request.sent) == sends
            assert idle(bench)

    async def test_the_same_over_grpc_whose_losses_are_answers(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            await both_ready(bench)
            request = GrpcRequest([GRPC_BROKE_OFF, message_answer(b"x")])
            assert await send(bench, request) is GRPC_BROKE_OFF
            again = GrpcRequest([GRPC_BROKE_OFF, message_answer(b"x")])
            work = bench.dispatch.send(again, call("a"), timeout_s=5.0, running=repeatable(True))  # type: ignore[arg-type]
            assert (await work).code == 0

    async def test_one_of_a_sequence_is_never_computed_twice(self) -> None:
        async with running(FleetBench(model("a", holds=True), servers=2)) as bench:
            request = Request([BROKE_OFF])
            asked = replace(call("a"), sequence_id="1", starts_sequence=True)
            with pytest.raises(UpstreamUnavailable):
                await bench.dispatch.send(request, asked, timeout_s=5.0, running=repeatable(True))  # type: ignore[arg-type]

    async def test_not_sent_twice_is_told(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            await both_ready(bench)
            request = Request([NOT_SENT, NOT_SENT])
            with pytest.raises(UpstreamUnavailable, match="cannot connect"):
                await send(bench, request)
            assert len(request.sent) == 2

    async def test_a_stream_that_was_not_begun_goes_to_another_server(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            await both_ready(bench)
            request = Request([NOT_SENT, FakeHttpStream().put(None)])
            held = await bench.dispatch.stream(request, call("a"), timeout_s=5.0)  # type: ignore[arg-type]
            assert not isinstance(held, HttpAnswer)
            held.close()
            assert len(request.sent) == 2
            assert idle(bench)


class TestServersThatHang:
    @staticmethod
    async def ask(bench: FleetBench, *, takes_s: float, timeout_s: float, error: Exception) -> None:
        with suppress(type(error), TimeoutError):
            async with asyncio.timeout(timeout_s):
                await send(bench, Request([error], takes_s=takes_s))

    @pytest.mark.parametrize(
        ("takes_s", "timeout_s", "is_ejected"),
        [
            pytest.param(3.0, 10.0, True, id="its deadline is over"),
            pytest.param(60.0, 3.0, True, id="its caller has left"),
            pytest.param(0.5, 10.0, False, id="soon"),
        ],
    )
    async def test_one_that_answers_nobody_is_ejected(self, takes_s: float, timeout_s: float, is_ejected: bool) -> None:
        async with running(FleetBench(servers=3)) as bench:
            bench.tritons["s1"].states["a"] = READY
            await bench.loads["s1"].poll_index()
            error = DeadlineExceeded("Triton did not answer within the request's deadline")
            await asyncio.gather(*(self.ask(bench, takes_s=takes_s, timeout_s=timeout_s, error=error) for _ in range(6)))
            await bench.reconciler.tick()
            assert bench.server("s1").is_ejected is is_ejected
            told = [(event.server, event.reason) for event in bench.state.events.latest if event.kind is FleetEventKind.EJECTED]
            assert told == ([("s1", "it has not answered 6 requests in a row")] if is_ejected else [])

    @pytest.mark.parametrize("error", [NOT_SENT, BROKE_OFF, RuntimeError("the handler is closed")], ids=["refused", "lost", "a defect"])
    async def test_one_that_fails_at_once_is_ejected(self, error: Exception) -> None:
        """Its index may be read all the while: that goes over another connection."""
        async with running(FleetBench(servers=3)) as bench:
            for _ in range(5):
                bench.tritons["s1"].states["a"] = READY
                await bench.loads["s1"].poll_index()
                bench.server("s1").is_ejected = False
                request = Request([error, error])
                with suppress(type(error), Overloaded):
                    await send(bench, request, timeout_s=0.5)
            await bench.reconciler.tick()
            told = [(event.server, event.reason) for event in bench.state.events.latest if event.kind is FleetEventKind.EJECTED]
            assert told == [("s1", "it has not answered 5 requests in a row")]

    async def test_one_that_answers_others_does_not_hang(self) -> None:
        async with running(FleetBench(servers=3)) as bench:
            bench.tritons["s1"].states |= {"a": READY, "b": READY}
            await bench.loads["s1"].poll_index()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(6):
                    tasks.create_task(self.ask(bench, takes_s=3.0, timeout_s=10.0, error=DeadlineExceeded("")))
                await asyncio.sleep(2.0)
                await bench.dispatch.send(Request(), call("b"), timeout_s=5.0)  # type: ignore[arg-type]
            await bench.reconciler.tick()
            assert not bench.server("s1").is_ejected

    async def test_a_restarted_one_is_another(self) -> None:
        """Failures of a server's last life do not count against the new one."""
        async with running(FleetBench(servers=3)) as bench:
            bench.tritons["s1"].states["a"] = READY
            await bench.loads["s1"].poll_index()
            await asyncio.gather(*(self.ask(bench, takes_s=0.1, timeout_s=5.0, error=BROKE_OFF) for _ in range(6)))
            await bench.reconciler.tick()
            assert bench.server("s1").is_ejected
            bench.kill("s1")
            await bench.reconciler.tick()
            bench.bring_up("s1")
            await bench.reconciler.tick()
            assert not bench.server("s1").is_ejected
            of_servers = [event.kind.value for event in bench.state.events.latest if not event.model]
            assert of_servers == ["ejected", "down", "up"], "it is not readmitted: it is another"

    async def test_one_that_does_well_again_is_readmitted(self) -> None:
        async with running(FleetBench(servers=3)) as bench:
            bench.tritons["s1"].states["a"] = READY
            await bench.loads["s1"].poll_index()
            await asyncio.gather(*(self.ask(bench, takes_s=0.1, timeout_s=5.0, error=BROKE_OFF) for _ in range(6)))
            for _ in range(60):  # until it comes back on trust
                await bench.reconciler.tick()
                await asyncio.sleep(1.0)
            of_servers = [(event.kind.value, event.server) for event in bench.state.events.latest if not event.model]
            assert of_servers == [("ejected", "s1"), ("readmitted", "s1")]

    async def test_what_is_lost_with_a_replica_that_is_gone_says_nothing_of_the_next(self) -> None:
        async with running(FleetBench(servers=3)) as bench:
            bench.tritons["s1"].states["a"] = READY
            await bench.loads["s1"].poll_index()
            claims = [await bench.claim("a") for _ in range(6)]
            bench.kill("s1")
            bench.bring_up("s1")
            for claim in claims:
                claim.release(answered=False)
                bench.state.ejection.failed(claim)
            await bench.reconciler.tick()
            assert not bench.server("s1").is_ejected


class TestDeadProcesses:
    async def test_after_a_few_such_answers_it_is_loaded_anew_and_requests_wait_for_that(self) -> None:
        async with running(FleetBench()) as bench, asyncio.TaskGroup() as tasks:
            await bench.use("a")
            bench.tritons["s0"].dead.add("a")
            for _ in range(3):
                assert await send(bench, Request([DEAD])) is DEAD
            assert bench.replica("a").state is LOADING
            request = tasks.create_task(send(bench, Request()))
            await asyncio.sleep(0.2)
            bench.state.fleet.drop_replica(bench.server(), "a")  # as Triton's index has it for a moment
            bench.state.changed()
            await asyncio.sleep(0.0)
            bench.state.observe("s0", await bench.tritons["s0"].index())
            assert status(await request) == 200
            assert bench.said == ["load a", "unload a", "load a"]
            assert bench.told() == [("loaded", "a"), ("lost", "a"), ("loaded", "a")]
            assert bench.state.events.latest[1].reason == "its Python process has died"

    @pytest.mark.parametrize(("named", "goes"), [("b_0_0", "b"), ("group_0", "a"), ("nowhere_0_0", "a")])
    async def test_where_it_calls_another_it_is_that_ones_process(self, named: str, goes: str) -> None:
        async with running(FleetBench()) as bench:
            await bench.use("a")
            await bench.use("b")
            bench.tritons["s0"].dead.add(goes)
            for _ in range(3):
                await send(bench, Request([make_answer(500, f"Stub process '{named}' is not healthy.".encode())]))
            assert {name: replica.state for name, replica in bench.server().replicas.items() if replica.state is not READY} == {
                goes: LOADING
            }

    async def test_what_kills_it_at_once_does_not_have_it_loaded_all_the_time(self) -> None:
        async with running(FleetBench()) as bench:
            await bench.use("a")
            while bench.now_s() < 120.0:
                bench.tritons["s0"].dead.add("a")
                with suppress(Overloaded):
                    await send(bench, Request([DEAD], takes_s=1.0), timeout_s=5.0)
            assert 4 <= bench.said.count("unload a") <= 6, "after 0, 5, 10, 20, 40, 80 seconds"

    @pytest.mark.parametrize("times", [1, 2])
    async def test_one_or_two_may_be_a_models_own_words(self, times: int) -> None:
        async with running(FleetBench()) as bench:
            await bench.use("a")
            for _ in range(5):
                for _ in range(times):
                    await send(bench, Request([DEAD]))
                await asyncio.sleep(61.0)
            assert bench.said == ["load a"]

    async def test_who_sends_by_itself_tells_it_by_the_error(self) -> None:
        async with running(FleetBench()) as bench:
            for _ in range(3):
                with pytest.raises(UpstreamFailed):
                    async with bench.dispatch.server_for(call("a"), timeout_s=5.0):
                        raise UpstreamFailed("Stub process 'a_0_0' is not healthy.")
            assert bench.replica("a").state is LOADING
            assert idle(bench)

    async def test_who_keeps_a_stream_open_tells_of_each_answer(self) -> None:
        async with running(FleetBench()) as bench:
            await bench.use("a")
            for number in range(3):
                assert bench.replica("a").state is READY, number
                bench.dispatch.met_dead_stub("s0", "a", sent_s=0.0)
            assert bench.replica("a").state is LOADING
            bench.dispatch.met_dead_stub("s9", "a", sent_s=0.0)
            bench.dispatch.met_dead_stub("s0", "nowhere", sent_s=0.0)

    async def test_one_that_cannot_be_loaded_anew_is_left_alone_for_a_while(self) -> None:
        async with running(FleetBench()) as bench:
            await bench.use("a")
            bench.tritons["s0"].failures["a"] = ModelLoadFailed("its weights are missing")
            bench.tritons["s0"].dead.add("a")
            for _ in range(3):
                await send(bench, Request([DEAD]))
            with pytest.raises(Overloaded, match="its weights are missing"):
                await send(bench, Request(), timeout_s=2.5)
            assert bench.told()[-2:] == [("lost", "a"), ("failed", "a")]


HOW = "was killed by SIGKILL"


class TestSeenDeaths:
    """Deaths of an embedded Triton's stubs that were seen: nobody need have met the dead process."""

    async def test_it_is_loaded_anew_at_once_and_requests_wait_for_that(self) -> None:
        async with running(FleetBench()) as bench:
            await bench.use("a")
            bench.tritons["s0"].dead.add("a")
            bench.router.stub_died("s0", "a", HOW)
            bench.router.stub_died("s0", "a", HOW)  # of a second instance
            assert bench.replica("a").state is LOADING
            assert status(await send(bench, Request())) == 200
            assert 0.9 < bench.now_s() < 2.5
            assert bench.said == ["load a", "unload a", "load a"]
            assert bench.state.events.latest[1].reason == "the Python process of 'a' was killed by SIGKILL"

    async def test_while_it_crashes_again_and_again_nothing_is_sent_there_until_the_back_off_is_over(self) -> None:
        async with running(FleetBench()) as bench:
            await bench.use("a")
            for _ in range(2):
                bench.tritons["s0"].dead.add("a")
                bench.router.stub_died("s0", "a", HOW)
                await asyncio.sleep(1.5)
            assert bench.replica("a").state is LOADING
            with pytest.raises(Overloaded, match=r"is being loaded, which is expected to take 3\.\d s"):
                await send(bench, Request(), timeout_s=2.0)
            assert bench.said.count("load a") == 2
            assert status(await send(bench, Request(), timeout_s=10.0)) == 200
            assert 6.0 < bench.now_s() < 8.0
            assert bench.said.count("load a") == 3

    async def test_a_dead_step_is_unloaded_by_itself_and_each_ensemble_is_loaded_anew(self) -> None:
        models = [model("e", 20, steps=frozenset({"s"})), model("f", 20, steps=frozenset({"s"})), model("s", 0)]
        async with running(FleetBench(*models)) as bench:
            await bench.use("e")
            await bench.use("f")
            bench.router.stub_died("s0", "s", HOW)
            assert {name: bench.replica(name).state for name in "ef"} == {"e": LOADING, "f": LOADING}
            await asyncio.sleep(4.0)
            assert {name: bench.replica(name).state for name in "efs"} == {"e": READY, "f": READY, "s": READY}
            assert bench.said[2:] == ["unload s", "unload e", "load e", "unload s", "unload f", "load f"]

    async def test_one_that_an_administrator_unloads_meanwhile_is_gone_afterwards(self) -> None:
        async with running(FleetBench(), remembers=True) as bench:
            await bench.use("a")
            bench.tritons["s0"].dead.add("a")
            bench.router.stub_died("s0", "a", HOW)
            await bench.models.unload("a")
            await asyncio.sleep(2.0)
            assert bench.tritons["s0"].states == {}
            assert bench.said == ["load a", "unload a", "load a", "unload a"]

    async def test_of_a_server_that_has_left_nothing_is_known(self) -> None:
        async with running(FleetBench()) as bench:
            bench.router.stub_died("elsewhere", "a", HOW)


class TestHangingCopies:
    """A copy of a model whose computation never ends, while its server answers everything else."""

    @staticmethod
    async def ask(bench: FleetBench, *, takes_s: float, timeout_s: float) -> None:
        with suppress(DeadlineExceeded, TimeoutError):
            async with asyncio.timeout(timeout_s):
                await send(bench, Request(takes_s=takes_s))

    async def test_one_that_answers_nobody_any_more_is_suspected(self) -> None:
        suspected = list[tuple[str, str, float]]()
        async with running(FleetBench()) as bench:
            bench.router.suspect = lambda *what: suspected.append(what)
            await self.ask(bench, takes_s=0.01, timeout_s=30.0)
            began_s = bench.now_s()
            for _ in range(10):
                await self.ask(bench, takes_s=1000.0, timeout_s=0.3)
            assert suspected[0][:2] == ("s0", "a")
            assert suspected[0][2] == pytest.approx(began_s, abs=0.1)
            assert idle(bench)
            assert not any(replica.waiting for replica in bench.server().replicas.values())

    @staticmethod
    async def first_piece(bench: FleetBench, stream: FakeHttpStream, *, takes_s: float, timeout_s: float = 30.0) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await bench.dispatch.stream(Request([stream], takes_s=takes_s), call("a"), timeout_s=timeout_s)  # type: ignore[arg-type]

    async def test_while_it_streams_a_response_it_is_not_however_long_others_wait(self) -> None:
        suspected = list[float]()
        async with running(FleetBench()) as bench, asyncio.TaskGroup() as tasks:
            bench.router.suspect = lambda *what: suspected.append(bench.now_s())
            stream = FakeHttpStream()
            await self.first_piece(bench, stream, takes_s=0.1)
            for second in range(400):
                if second < 300:
                    stream.heard_s = bench.now_s()
                if not second % 10:  # who waits behind it gives up after half a minute
                    tasks.create_task(self.first_piece(bench, FakeHttpStream(), takes_s=1000.0))
                await asyncio.sleep(1.0)
                if second == 299:
                    assert not suspected
                    assert not bench.server().is_ejected
            assert suspected, "it has hung since"

    async def test_while_somebody_waits_for_a_long_request_it_is_not(self) -> None:
        suspected = list[tuple[str, str, float]]()
        async with running(FleetBench()) as bench, asyncio.TaskGroup() as tasks:
            bench.router.suspect = lambda *what: suspected.append(what)
            await self.ask(bench, takes_s=0.01, timeout_s=30.0)
            began_s = bench.now_s()
            tasks.create_task(send(bench, Request(takes_s=20.0)))
            await asyncio.sleep(0)
            for _ in range(50):
                await self.ask(bench, takes_s=1000.0, timeout_s=0.3)
            assert suspected == []
            assert list(bench.dispatch.awaited()) == [("s0", "a", began_s)]
