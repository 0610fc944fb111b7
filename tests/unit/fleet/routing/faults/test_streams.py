"""Streamed responses that do not come to their end: the prompt is as suspect as any other request."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress

import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, QueryOfDeath, UpstreamFailed, UpstreamUnavailable
from control_plane.protocols.http1 import HttpAnswer
from control_plane.triton.ports import HttpStream
from tests.fakes import FakeHttpStream
from tests.unit.fleet.fleet_bench import FleetBench, call, running
from tests.unit.fleet.routing.dispatch_bench import KeptRequest, Request, idle
from tests.unit.fleet.routing.faults.losses_bench import BROKE_OFF, DEAD, both_ready, repeatable

pytestmark = pytest.mark.virtual_time


async def stream(bench: FleetBench, request: Request, *, timeout_s: float = 5.0, is_repeatable: bool = False) -> HttpAnswer | HttpStream:
    running = repeatable(is_repeatable)
    return await bench.dispatch.stream(request, call("a"), timeout_s=timeout_s, running=running)  # type: ignore[arg-type]


async def test_one_under_which_two_processes_die_is_refused() -> None:
    async with running(FleetBench(servers=2)) as bench:
        await both_ready(bench)
        assert await stream(bench, Request([DEAD], text="poison")) is DEAD
        for _ in range(2):
            with pytest.raises(QueryOfDeath):
                await stream(bench, Request([DEAD], text="poison"))
        assert bench.dispatch.deaths.found == 1
        assert idle(bench)


async def test_an_equal_one_waits_while_a_replica_may_hang_in_it() -> None:
    async with running(FleetBench()) as bench:
        first = await stream(bench, Request([FakeHttpStream()], takes_s=0.1))
        assert not isinstance(first, HttpAnswer)
        first.close()
        hangs = Request([DeadlineExceeded("late")], takes_s=5.0, text="hangs")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stream(bench, Request([FakeHttpStream()], takes_s=8.0)))  # who waits there shows whether it lives
            with pytest.raises(DeadlineExceeded, match="late"):
                await stream(bench, hangs)
            again = Request([FakeHttpStream()], text="hangs")
            with pytest.raises(DeadlineExceeded, match="it was not sent"):
                await stream(bench, again, timeout_s=1.0)
            assert not again.sent


async def test_one_that_may_be_computed_twice_is_sent_again_before_its_first_piece_and_no_other() -> None:
    async with running(FleetBench(servers=2)) as bench:
        await both_ready(bench)
        request = Request([BROKE_OFF, FakeHttpStream()])
        held = await stream(bench, request, is_repeatable=True)
        assert not isinstance(held, HttpAnswer)
        held.close()
        assert len(request.sent) == 2
        await both_ready(bench)
        with pytest.raises(UpstreamUnavailable):
            await stream(bench, Request([BROKE_OFF, FakeHttpStream()]))
        assert idle(bench)


async def _begun(bench: FleetBench, request: Request) -> HttpStream:
    held = await stream(bench, request)
    assert not isinstance(held, HttpAnswer)
    return held


@pytest.mark.parametrize("fails", [BROKE_OFF, UpstreamFailed("Stub process 'a_0_0' is not healthy.")])
async def test_one_under_which_two_processes_die_after_its_first_piece_is_refused(fails: ControlPlaneError) -> None:
    async with running(FleetBench(servers=3)) as bench:
        await both_ready(bench)
        for expected in (type(fails), QueryOfDeath):
            request = Request([FakeHttpStream().put(b"x", fails)], text="poison")
            held = await _begun(bench, request)
            assert await held.receive() == b"x"
            [died] = [name for name in bench.tritons if bench.servers.members[name].upstream is request.sent[0][0]]
            asyncio.get_running_loop().call_later(0.1, bench.servers.members[died].lost, "Triton has crashed")
            with pytest.raises(expected):
                await held.receive()
            held.close()
            await asyncio.sleep(0.2)
        with pytest.raises(QueryOfDeath):
            await stream(bench, Request([FakeHttpStream()], text="poison"))
        held = await _begun(bench, Request([FakeHttpStream()], text="innocent"))
        held.close()
        assert bench.dispatch.deaths.found == 1
        assert idle(bench)


async def test_a_replica_that_hangs_in_the_midst_of_a_stream_and_then_begins_no_other_is_told_of() -> None:
    async with running(FleetBench()) as bench:
        told = list[str]()
        bench.router.suspect = lambda server, model, since_s: told.append(model)
        held = await _begun(bench, Request([FakeHttpStream(heard_s=bench.state.now_s()).put(b"x")]))
        assert await held.receive() == b"x"
        with suppress(TimeoutError):
            async with asyncio.timeout(20.0):
                await held.receive()
        held.close()
        assert not told, "one alone may have been given up for a pause"
        with pytest.raises(DeadlineExceeded):
            await stream(bench, Request([DeadlineExceeded("late")], takes_s=5.0))
        assert told == ["a"]
        assert idle(bench)


@pytest.mark.parametrize("is_repeatable", [False, True])
async def test_with_a_stub_its_streams_end_and_one_that_has_not_begun_is_sent_again_if_it_may_be(is_repeatable: bool) -> None:
    async with running(FleetBench()) as bench:
        await bench.use("a")
        begun = await _begun(bench, Request([FakeHttpStream()]))
        later, running_later = KeptRequest([FakeHttpStream(), FakeHttpStream()], takes_s=0.5), repeatable(is_repeatable)
        running_later.permit.forsake = later.kept.clear
        loop = asyncio.get_running_loop()
        loop.call_later(0.1, bench.router.stub_died, "s0", "a", "was killed by SIGKILL")
        with nullcontext() if is_repeatable else pytest.raises(UpstreamUnavailable, match="has died"):
            held = await bench.dispatch.stream(later, call("a"), timeout_s=20.0, running=running_later)  # type: ignore[arg-type]
            assert not isinstance(held, HttpAnswer)
            held.close()
        with pytest.raises(UpstreamUnavailable, match="the Python process of 'a' on server 's0' has died"):
            await begun.receive()
        begun.close()
        assert len(later.sent) == 1 + is_repeatable
        assert not later.kept, "no slot waits for the dead process"
        assert bench.dispatch.deaths.watches("a")
        assert idle(bench)
