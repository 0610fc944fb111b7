"""What is sent to another replica of its model, in a fleet over fake Tritons: by the table of faults, within the retry
budget, and never under a third process.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from control_plane.core.errors import ControlPlaneError, QueryOfDeath
from control_plane.fleet.routing.dispatch import FleetDispatcher
from control_plane.inference.retries.retry_budget import RetryKind
from control_plane.protocols.grpc import message_answer, status_answer
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.triton.ports import Upstream
from tests.unit.fleet.fleet_bench import FleetBench, running
from tests.unit.fleet.routing.dispatch_bench import Request, idle, status
from tests.unit.fleet.routing.faults.losses_bench import BROKE_OFF, DEAD, both_ready
from tests.unit.fleet.routing.faults.resending_bench import OK, ready_everywhere, send

pytestmark = pytest.mark.virtual_time

NOT_READY = make_answer(503, b"Request for unknown model: 'a' version 1 is not at ready state")
QUEUE_FULL = make_answer(503, b"Exceeds maximum queue size")
STOPPING = make_answer(503, b"Server is stopping, scheduler for model has stopped accepting new inference requests")
EXPIRED = make_answer(503, b"Request timeout expired")
RESTRICTED = make_answer(403, b"This API is restricted")


class TestTheTable:
    @pytest.mark.parametrize("answer", [DEAD, NOT_READY, QUEUE_FULL, STOPPING], ids=["dead stub", "not ready", "full queue", "stopping"])
    @pytest.mark.parametrize("is_repeatable", [True, False], ids=["repeatable", "not repeatable"])
    async def test_another_replica_is_asked_once_where_the_request_is_repeatable(self, answer: HttpAnswer, is_repeatable: bool) -> None:
        async with running(FleetBench(servers=2)) as bench:
            await both_ready(bench)
            request = Request([answer, OK])
            assert status(await send(bench, request, is_repeatable=is_repeatable)) == (200 if is_repeatable else answer.status)
            if is_repeatable:
                (first, _), (second, _) = request.sent
                assert first is not second
            if answer is DEAD:
                return  # below
            again = Request([answer, answer])
            assert await send(bench, again) is answer
            assert len(again.sent) <= 2
            assert idle(bench)

    async def test_the_same_over_grpc(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            await both_ready(bench)
            request = Request([status_answer(14, "Exceeds maximum queue size"), message_answer(b"x")])
            assert (await send(bench, request)).code == 0

    @pytest.mark.parametrize("answer", [EXPIRED, RESTRICTED, make_answer(400, b"Request was cancelled"), make_answer(500, b"")])
    async def test_what_another_replica_would_answer_too_is_the_answer(self, answer: HttpAnswer) -> None:
        async with running(FleetBench(servers=2)) as bench:
            await both_ready(bench)
            request = Request([answer])
            assert await send(bench, request) is answer
            assert idle(bench)

    @pytest.mark.parametrize("answer", [DEAD, NOT_READY, QUEUE_FULL, STOPPING])
    async def test_where_there_is_no_other_replica_it_is_the_answer(self, answer: HttpAnswer) -> None:
        async with running(FleetBench(servers=2)) as bench:
            await bench.use("a")
            request = Request([answer])
            assert await send(bench, request) is answer

    @pytest.mark.parametrize(("answer", "is_resent"), [(QUEUE_FULL, False), (NOT_READY, True)])
    async def test_a_full_queue_is_left_only_for_a_replica_that_could_begin_at_once(self, answer: HttpAnswer, is_resent: bool) -> None:
        async with running(FleetBench(servers=2)) as bench:
            await both_ready(bench)
            others = [await bench.claim("a") for _ in range(40)]
            request = Request([answer, OK])
            await send(bench, request)
            assert len(request.sent) == (2 if is_resent else 1)
            for claim in others:
                claim.release(answered=True)


class FailingServers:
    """Requests that every server, or one, loses after a while; counts what the servers see."""

    def __init__(self) -> None:
        self.seen = 0
        self.down: set[Upstream] = set()

    def request(self) -> Request:
        return _Lost(self)


class _Lost(Request):
    def __init__(self, servers: FailingServers) -> None:
        super().__init__()
        self.servers = servers

    async def send(self, server: Upstream, *, timeout_s: float) -> Any:
        self.servers.seen += 1
        await asyncio.sleep(0.02)
        if server in self.servers.down:
            raise BROKE_OFF.with_traceback(None)  # else it would keep each task in which it was raised
        return OK

    stream = send


class TestTheBudget:
    async def test_in_an_outage_of_all_the_servers_see_a_tenth_more(self) -> None:
        async with running(FleetBench(servers=3), reconciles=True) as bench, asyncio.TaskGroup() as tasks:
            await ready_everywhere(bench)
            servers, outcomes = FailingServers(), Counter[str]()

            async def ask() -> None:
                try:
                    await send(bench, servers.request(), timeout_s=2.0)
                    outcomes["answered"] += 1
                except ControlPlaneError as exc:
                    outcomes[type(exc).__name__] += 1

            for number in range(3000):
                if number == 500:
                    servers.down = {bench.servers.members[name].pick() for name in bench.tritons}
                    seen_before = servers.seen
                tasks.create_task(ask())
                await asyncio.sleep(0.01)
            await asyncio.sleep(5.0)
            assert outcomes["answered"] >= 499
            assert servers.seen - seen_before <= 1.1 * 2500 + 50, "a tenth, what was saved before, and one server's requests"
            assert bench.dispatch.retries.totals[RetryKind.RESEND, False] > 0

    async def test_one_server_that_dies_costs_nothing_that_is_repeatable_even_at_the_start(self) -> None:
        async with running(FleetBench(servers=3)) as bench:
            await ready_everywhere(bench)
            servers = FailingServers()
            servers.down = {bench.servers.members["s1"].pick()}
            answers = await asyncio.gather(*(send(bench, servers.request()) for _ in range(60)))
            assert [status(answer) for answer in answers] == [200] * 60


class Poisoned:
    """Servers whose replicas of the model die under one text, and tell it a second later, as Triton does."""

    def __init__(self, bench: FleetBench) -> None:
        self.bench = bench
        self.dead: dict[Upstream, float] = {}
        """Servers whose process has died, each with when the one before it was loaded."""

    def die(self, server: Upstream) -> None:
        self.dead[server] = self._loaded_s(server)

    def is_dead(self, server: Upstream) -> bool:
        return server in self.dead and self.dead[server] == self._loaded_s(server)

    def _loaded_s(self, server: Upstream) -> float:
        name = next(each for each in self.bench.tritons if self.bench.servers.members[each].pick() is server)
        return self.bench.state.fleet.servers[name].replicas["a"].revived_s

    def request(self, text: str, *, takes_s: float = 0.03) -> Request:
        return _ForMortals(self, text, takes_s)


class _ForMortals(Request):
    def __init__(self, servers: Poisoned, text: str, takes_s: float) -> None:
        super().__init__(text=text, takes_s=takes_s)
        self.servers = servers

    async def send(self, server: Upstream, *, timeout_s: float) -> Any:
        self.sent.append((server, timeout_s))
        if self.text.startswith("poison"):
            self.servers.die(server)
        if not self.servers.is_dead(server):
            await asyncio.sleep(self.takes_s)
        if self.servers.is_dead(server):
            await asyncio.sleep(1.0)
            return DEAD
        return OK


class _Revived(Poisoned):
    """The same, seen by whoever watches the processes, and loaded anew."""

    def __init__(self, bench: FleetBench) -> None:
        super().__init__(bench)
        self.deaths = 0

    def request(self, text: str, *, takes_s: float = 0.03) -> Request:
        return _ForRevived(self, text, takes_s)

    def die(self, server: Upstream) -> None:
        self.deaths += 1
        name = next(each for each in self.bench.tritons if self.bench.servers.members[each].pick() is server)
        self.bench.tritons[name].dead.add("a")
        self.bench.router.stub_died(name, "a", "was killed by SIGKILL")


class _ForRevived(Request):
    def __init__(self, servers: _Revived, text: str, takes_s: float) -> None:
        super().__init__(text=text, takes_s=takes_s)
        self.servers = servers

    async def send(self, server: Upstream, *, timeout_s: float) -> Any:
        self.sent.append((server, timeout_s))
        if self.text.startswith("poison"):
            await asyncio.sleep(0.05)
            self.servers.die(server)
        await asyncio.sleep(self.takes_s)
        return DEAD if "a" in server.control.dead else OK  # type: ignore[attr-defined]


class TestQueriesOfDeath:
    @pytest.mark.parametrize("is_repeatable", [True, False], ids=["repeatable", "not repeatable"])
    async def test_of_three_replicas_one_lives_and_innocents_lose_nothing(self, is_repeatable: bool) -> None:
        async with running(FleetBench(servers=3)) as bench, asyncio.TaskGroup() as tasks:
            await ready_everywhere(bench)
            servers, told = Poisoned(bench), Counter[object]()

            async def callers(number: int) -> None:
                for turn in range(100):
                    answer = await send(bench, servers.request(f"innocent {number} {turn}"))
                    told[status(answer)] += 1

            innocents = [tasks.create_task(callers(number)) for number in range(8)]
            await asyncio.sleep(0.5)
            answered = 0
            for _ in range(8):
                with suppress(QueryOfDeath):
                    assert status(await send(bench, servers.request("poison"), is_repeatable=is_repeatable)) == 500
                    answered += 1
            assert answered == (0 if is_repeatable else 1)
            assert len(servers.dead) == 2
            assert (bench.dispatch.deaths.found, bench.dispatch.deaths.refused) == (1, 8 - answered)
            await asyncio.gather(*innocents)
            assert told == {200: 800}

    @pytest.mark.parametrize("protocols", [1, 2])
    async def test_processes_that_tell_each_other_act_as_one(self, protocols: int) -> None:
        """Two processes before the same servers, each with its view of them."""
        async with running(FleetBench(servers=5)) as bench, asyncio.TaskGroup() as tasks:
            await ready_everywhere(bench)
            servers, told = Poisoned(bench), Counter[object]()
            one, other = bench.dispatch, FleetDispatcher(bench.router, now_s=bench.now_s)
            one.deaths.tell, other.deaths.tell = other.deaths.learn, one.deaths.learn

            async def callers(dispatch: FleetDispatcher, number: int) -> None:
                for turn in range(100):
                    request = servers.request(f"innocent {number} {turn}")
                    told[status(await send(bench, request, dispatch=dispatch, timeout_s=60.0))] += 1

            innocents = [tasks.create_task(callers((one, other)[number % 2], number)) for number in range(8)]
            await asyncio.sleep(0.5)
            for number in range(8):
                poison = servers.request("poison" + number % protocols * " over another protocol")
                with pytest.raises(QueryOfDeath):
                    await send(bench, poison, dispatch=(one, other)[number // 2 % 2], timeout_s=60.0)
            assert len(servers.dead) == 2 * protocols
            assert one.deaths.found + other.deaths.found == protocols
            assert other.deaths.refused
            await asyncio.gather(*innocents)
            assert told == {200: 800}

    async def test_processes_that_share_their_lanes_blame_no_innocent(self) -> None:
        """Each of two processes sends a suspect to the only replica that is left, and one of these is the poison."""
        async with running(FleetBench(servers=2), reconciles=True) as bench, asyncio.TaskGroup() as tasks:
            await ready_everywhere(bench)
            servers = _Revived(bench)
            one, other = bench.dispatch, FleetDispatcher(bench.router, now_s=bench.now_s)
            one.deaths.tell, other.deaths.tell = other.deaths.learn, one.deaths.learn
            one.deaths.turns = other.deaths.turns
            beside = [servers.request(f"innocent {number}", takes_s=0.3) for number in range(8)]
            asked = [tasks.create_task(send(bench, each, dispatch=other, timeout_s=60.0)) for each in beside]
            await asyncio.sleep(0.1)
            with pytest.raises(QueryOfDeath):
                await send(bench, servers.request("poison"), timeout_s=60.0)
            assert [status(each) for each in await asyncio.gather(*asked)] == [200] * 8
            assert servers.deaths == 2
            assert (one.deaths.found, other.deaths.found) == (1, 0)

    async def test_after_a_minute_it_is_let_through(self) -> None:
        async with running(FleetBench(servers=3)) as bench:
            await ready_everywhere(bench)
            servers = Poisoned(bench)
            with pytest.raises(QueryOfDeath):
                await send(bench, servers.request("poison"))
            await asyncio.sleep(61.0)
            assert status(await send(bench, Request(text="poison"))) == 200

    async def test_equal_requests_that_wait_behind_it_are_refused_with_it(self) -> None:
        async with running(FleetBench(servers=3)) as bench:
            await ready_everywhere(bench)
            servers = Poisoned(bench)
            first = await send(bench, servers.request("poison"), is_repeatable=False)
            assert status(first) == 500
            rest = await asyncio.gather(*(send(bench, servers.request("poison")) for _ in range(7)), return_exceptions=True)
            assert all(isinstance(each, QueryOfDeath) for each in rest)
            assert len(servers.dead) == 2

    async def test_a_server_that_dies_under_equal_requests_blames_none_of_them(self) -> None:
        """Each is cleared by the first that is answered: a load test's requests are all alike."""
        async with running(FleetBench(servers=3), reconciles=True) as bench:
            await ready_everywhere(bench)

            async def lose_and_ask(name: str) -> None:
                gone = bench.servers.members[name].pick()

                class Alike(Request):
                    async def send(self, server: Upstream, *, timeout_s: float) -> Any:
                        await asyncio.sleep(0.05)
                        if server is gone:
                            raise BROKE_OFF
                        return OK

                requests = [send(bench, Alike(text="alike")) for _ in range(30)]
                asyncio.get_running_loop().call_later(0.06, bench.kill, name)
                assert [status(each) for each in await asyncio.gather(*requests)] == [200] * 30

            await lose_and_ask("s1")
            await asyncio.sleep(10.0)
            await lose_and_ask("s2")
            assert bench.dispatch.deaths.refused == 0

    async def test_after_a_servers_death_many_suspects_do_not_take_long(self) -> None:
        async with running(FleetBench(servers=2)) as bench:
            await ready_everywhere(bench)
            servers = FailingServers()
            servers.down = {bench.servers.members["s1"].pick()}
            began_s = bench.now_s()
            await asyncio.gather(*(send(bench, servers.request()) for _ in range(400)))
            assert bench.now_s() - began_s < 0.5, "one after the other they would take 4 s"

    async def test_a_replica_that_is_loaded_anew_dies_anew_however_soon(self) -> None:
        async with running(FleetBench()) as bench:
            await bench.use("a")
            assert status(await send(bench, Request([DEAD], text="poison"))) == 500
            bench.tritons["s0"].dead.add("a")
            bench.router.stub_died("s0", "a", "was killed by SIGKILL")
            await asyncio.sleep(3.0)
            assert not bench.replica("a").is_dead
            with pytest.raises(QueryOfDeath):
                await send(bench, Request([DEAD], text="poison"))
