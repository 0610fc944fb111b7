"""Fate of requests at a replica that hangs beside a server that answers; over fake Tritons."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import DeadlineExceeded
from control_plane.inference.retries.retry_budget import RetryKind
from tests.unit.fleet.routing.dispatch_bench import idle, status
from tests.unit.fleet.routing.faults.overdue_watch_bench import InTurn, keep_asking, scene
from tests.unit.fleet.routing.faults.resending_bench import send

pytestmark = pytest.mark.virtual_time


async def test_what_waits_behind_one_that_never_ends_is_sent_elsewhere_and_others_keep_away() -> None:
    async with scene() as (bench, tritons), asyncio.TaskGroup() as tasks:
        told: list[float] = []
        callers = [tasks.create_task(keep_asking(tritons, bench.now_s() + 10.0, told)) for _ in range(4)]
        await asyncio.sleep(0.5)
        endless = asyncio.get_running_loop().create_task(tritons.ask(3600.0, timeout_s=25.0))
        await asyncio.gather(*callers)
        assert max(told) < 2.0
        # Those were there when it began; who is a probe later is taken back much sooner.
        assert sum(took_s > 1.0 for took_s in told) <= 4
        with pytest.raises(DeadlineExceeded):
            await endless
        assert idle(bench)


async def test_a_long_one_that_its_caller_waits_for_is_computed_once_and_those_behind_it_go_elsewhere() -> None:
    async with scene() as (bench, tritons), asyncio.TaskGroup() as tasks:
        told: list[float] = []
        callers = [tasks.create_task(keep_asking(tritons, bench.now_s() + 8.0, told)) for _ in range(4)]
        suspected: list[str] = []
        bench.router.suspect = lambda server, model, since_s: suspected.append(server)
        await asyncio.sleep(0.5)
        request = InTurn(tritons, 5.0)
        assert status(await send(bench, request)) == 200
        assert len(request.sent) == 1
        assert not suspected
        await asyncio.gather(*callers)
        assert max(told) < 2.0


async def test_what_may_not_be_sent_again_waits() -> None:
    async with scene() as (bench, tritons), asyncio.TaskGroup() as tasks:
        told: list[float] = []
        callers = [tasks.create_task(keep_asking(tritons, bench.now_s() + 3.0, told, is_repeatable=False)) for _ in range(4)]
        await asyncio.sleep(0.5)
        assert status(await tritons.ask(4.0, timeout_s=25.0)) == 200
        await asyncio.gather(*callers)
        assert 3.0 < max(told) < 5.0


async def test_saturation_takes_nothing_back_and_doubts_nobody() -> None:
    """As many as two replicas can just do within their deadlines, for three minutes."""
    async with scene() as (bench, tritons), asyncio.TaskGroup() as tasks:
        suspected: list[str] = []
        bench.router.suspect = lambda server, model, since_s: suspected.append(server)
        told, until_s = [0, 0], bench.now_s() + 180.0

        async def ask() -> None:
            while bench.now_s() < until_s:
                try:
                    told[status(await tritons.ask(0.1, timeout_s=2.5)) == 200] += 1
                except DeadlineExceeded:
                    told[False] += 1
                await asyncio.sleep(0.05)

        await asyncio.gather(*(tasks.create_task(ask()) for _ in range(49)))
        lost, answered = told
        assert answered > 2_700
        assert lost > 0, "some run out of time"
        assert bench.dispatch.retries.counts[RetryKind.RESEND, True] == 0
        assert not suspected
        assert bench.state.doubts.avoided("a") == frozenset()


async def test_a_replica_that_hangs_is_suspected_once_one_was_given_up_and_another_has_waited_as_long() -> None:
    async with scene(servers=1) as (bench, tritons):
        suspected: list[tuple[str, float]] = []
        bench.router.suspect = lambda server, model, since_s: suspected.append((server, bench.now_s()))
        for _ in range(3):
            assert status(await tritons.ask()) == 200
        began_s = bench.now_s()
        loop = asyncio.get_running_loop()
        waiting = loop.create_task(tritons.ask(3600.0, timeout_s=2.0))
        await asyncio.sleep(0.1)
        behind = loop.create_task(tritons.ask(timeout_s=20.0))
        with pytest.raises(DeadlineExceeded):
            await waiting
        await asyncio.sleep(1.0)
        assert [(server, at_s - began_s) for server, at_s in suspected] == [("s0", pytest.approx(2.1, abs=0.3))]
        behind.cancel()
