"""Streamed responses whose first piece does not come: the prompt is as suspect as any other request."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import DeadlineExceeded, QueryOfDeath, UpstreamUnavailable
from control_plane.protocols.http1 import HttpAnswer
from control_plane.triton.ports import HttpStream
from tests.fakes import FakeHttpStream
from tests.unit.fleet.fleet_bench import FleetBench, call, running
from tests.unit.fleet.routing.dispatch_bench import Request, idle
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
