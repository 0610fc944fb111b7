"""Fate of a request that never ends, whose callers give it up time and again; over fake Tritons."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from control_plane.core.errors import DeadlineExceeded, QueryOfDeath
from control_plane.triton.copy_silence import HUNG
from tests.unit.fleet.fleet_bench import LOADING, READY
from tests.unit.fleet.routing.dispatch_bench import status
from tests.unit.fleet.routing.faults.hung_requests_bench import ENDED_AFTER_S, TAKES_S, Mended, crowd, given_up
from tests.unit.fleet.routing.faults.overdue_watch_bench import scene

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def mended(*, servers: int = 3, how: str = HUNG) -> AsyncIterator[Mended]:
    async with scene(servers) as (bench, tritons):
        mended = Mended(bench, how)
        mended.tasks = tritons.tasks  # ended with the scene
        yield mended


async def cancelled(sent: Awaitable[Any]) -> None:
    """Await an answer as a caller does who leaves after two seconds without one."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.0):
            await sent


async def test_a_gateway_that_does_not_lead_the_fleet_refuses_it_too() -> None:
    async with mended() as servers:
        servers.bench.request_repair = lambda server, model: True  # type: ignore[method-assign]
        for number in range(2):
            await given_up(servers.send("endless"))
            await asyncio.sleep(ENDED_AFTER_S)
            for state in (LOADING, READY):  # as the leader has it loaded
                servers.bench.tritons[servers.wedged[number]].states["a"] = state
                await servers.bench.loads[servers.wedged[number]].poll_index()
        with pytest.raises(QueryOfDeath):
            await servers.send("endless")


@pytest.mark.parametrize("leaves", [given_up, cancelled])
async def test_it_is_refused_once_two_replicas_have_hung_in_it(leaves: Any) -> None:
    async with mended() as servers:
        for _ in range(2):
            await leaves(servers.send("endless", timeout_s=2.0 if leaves is given_up else 60.0))
            await asyncio.sleep(ENDED_AFTER_S)
        for _ in range(6):
            with pytest.raises(QueryOfDeath, match="2 processes died under it"):
                await servers.send("endless")
        assert len(servers.wedged) == 2
        assert status(await servers.send("innocent")) == 200


async def test_it_is_refused_also_where_its_caller_leaves_while_what_came_before_it_is_computed() -> None:
    async with mended(servers=1) as servers:
        servers.ended_after_s = 5.0
        for _ in range(2):
            async with asyncio.TaskGroup() as tasks:
                before = tasks.create_task(servers.send("slow", timeout_s=30.0))
                await asyncio.sleep(0.7)
                await given_up(servers.send("endless", timeout_s=0.5))
            assert status(before.result()) == 200
            await asyncio.sleep(servers.ended_after_s)
        with pytest.raises(QueryOfDeath):
            await servers.send("endless")


async def hang_beside(servers: Mended, other: str, *, after_s: float, timeout_s: float) -> None:
    """Send the endless request and, later, another one at the same replica, both of which are given up; wait until the stub
    has been ended."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(given_up(servers.send("endless")))
        await asyncio.sleep(after_s)
        await given_up(servers.send(other, timeout_s=timeout_s))
    await asyncio.sleep(ENDED_AFTER_S)


async def keep_sending(servers: Mended, text: str, *, times: int) -> None:
    """Send a request time and again, as a client does that tries again at once."""
    for _ in range(times):
        with suppress(DeadlineExceeded, QueryOfDeath):
            await servers.send(text)


async def test_who_sends_it_again_at_once_hangs_one_replica_at_a_time() -> None:
    async with mended() as servers, crowd(servers):
        await keep_sending(servers, "endless", times=8)
        assert len(servers.wedged) == 2
        with pytest.raises(QueryOfDeath):
            await servers.send("endless")


async def test_one_like_what_was_given_up_is_sent_once_the_replica_has_answered_others() -> None:
    async with mended() as servers, crowd(servers):
        await given_up(servers.send("slow"))
        began_s = servers.bench.now_s()
        assert status(await servers.send("slow", timeout_s=5.0)) == 200
        # 0.2 s until the first is done, up to 0.25 until that is seen, and its own time.
        assert TAKES_S["slow"] < servers.bench.now_s() - began_s < TAKES_S["slow"] + 0.5


async def test_one_like_it_waits_for_nothing_where_nobody_else_would_show_that_the_replica_hangs() -> None:
    async with mended() as servers:
        servers.ended_after_s = 3600.0
        await given_up(servers.send("endless"))
        await given_up(servers.send("endless", timeout_s=1.0))
        assert len(servers.wedged) == 2


async def test_one_like_it_waits_for_nothing_where_the_replica_has_not_been_silent_for_long() -> None:
    async with mended() as servers, crowd(servers):
        await given_up(servers.send("endless", timeout_s=0.3))
        await given_up(servers.send("endless", timeout_s=0.3))
        assert len(servers.wedged) == 2


async def test_one_like_what_was_given_up_waits_for_nothing_where_answers_take_as_long() -> None:
    async with mended(servers=1) as servers, crowd(servers):
        assert status(await servers.send("slow", timeout_s=5.0)) == 200
        await given_up(servers.send("slow"))
        began_s = servers.bench.now_s()
        assert status(await servers.send("slow", timeout_s=5.0)) == 200
        assert servers.bench.now_s() - began_s < TAKES_S["slow"] + 0.5


async def test_others_do_not_wait_for_what_becomes_known_of_it() -> None:
    async with mended() as servers, crowd(servers) as told:
        await given_up(servers.send("endless"))
        told.clear()
        await asyncio.sleep(1.0)
        assert len(told) > 50


async def test_one_like_it_is_sent_after_ten_seconds_if_nothing_is_known_by_then() -> None:
    async with mended() as servers, crowd(servers):
        servers.ended_after_s = 3600.0
        await given_up(servers.send("endless"))
        assert len(servers.wedged) == 1
        await given_up(servers.send("endless", timeout_s=9.5))
        assert len(servers.wedged) == 1
        await given_up(servers.send("endless", timeout_s=2.0))
        assert len(servers.wedged) == 2


async def test_who_gives_up_behind_it_is_not_blamed() -> None:
    async with mended(servers=1) as servers:
        for _ in range(2):
            await hang_beside(servers, "behind it", after_s=1.0, timeout_s=1.5)
        with pytest.raises(QueryOfDeath):
            await servers.send("endless")
        assert status(await servers.send("behind it")) == 200


async def test_others_that_are_given_up_sooner_do_not_hide_it() -> None:
    async with mended(servers=1) as servers:
        for number in range(2):
            await hang_beside(servers, f"beside it, {number}", after_s=0.1, timeout_s=1.0)
        with pytest.raises(QueryOfDeath):
            await servers.send("endless")
        for number in range(2):
            assert status(await servers.send(f"beside it, {number}")) == 200


async def test_one_that_is_sent_again_while_the_replica_hangs_is_not_guilty_at_once() -> None:
    async with mended(servers=1) as servers, asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(given_up(servers.send("endless")))
        await asyncio.sleep(2.0 + ENDED_AFTER_S)
        assert servers.bench.dispatch.deaths.found == 0
        assert servers.bench.dispatch.deaths.watches("a")


async def test_what_was_given_up_is_forgotten_with_a_replica_that_is_unloaded() -> None:
    async with mended(servers=1) as servers:
        await given_up(servers.send("slow"))
        servers.bench.state.drop(servers.bench.server(), servers.bench.replica("a"))
        await asyncio.sleep(1.0)
        assert not servers.bench.dispatch.hung._given_up


async def test_one_is_not_blamed_where_the_stub_dies_by_itself() -> None:
    async with mended(how="was killed by SIGKILL") as servers:
        for _ in range(3):
            await given_up(servers.send("endless"))
            await asyncio.sleep(ENDED_AFTER_S)
        assert servers.bench.dispatch.deaths.found == 0


async def test_one_is_not_blamed_where_the_replica_has_answered_since() -> None:
    async with mended(servers=1) as servers:
        for _ in range(3):
            await given_up(servers.send("slow"))
            await asyncio.sleep(0.5)
            assert status(await servers.send("innocent")) == 200
            servers.end("s0")
            await asyncio.sleep(ENDED_AFTER_S)
        assert servers.bench.dispatch.deaths.found == 0
