"""Requests that are taken back from an only server's model, as its Python process has died, and are sent to the next one."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import UpstreamUnavailable
from tests.unit.fleet.routing.dispatch_bench import Request
from tests.unit.fleet.routing.faults.losses_bench import DEAD
from tests.unit.inference.dispatch.single_server_bench import OK, Bench

pytestmark = pytest.mark.virtual_time


async def test_of_a_stub_that_died_all_is_sent_to_the_next_at_once_not_as_triton_gives_it_up() -> None:
    bench, loop = Bench(), asyncio.get_running_loop()
    bench.servers.suspect = lambda *_: None
    requests = [Request([OK], takes_s=30.0, text=f"{number}") for number in range(20)]

    def revived() -> None:
        for request in requests:
            request.takes_s = 0.1
        bench.servers.under_repair.show({})

    loop.call_later(0.5, bench.servers.under_repair.show, {"a": loop.time() + 2.0})
    loop.call_later(0.7, bench.servers.under_repair.show, {"a": loop.time() + 2.0})  # told twice, taken back once
    loop.call_later(2.0, revived)
    async with asyncio.TaskGroup() as tasks:
        left = tasks.create_task(bench.send(Request([OK], takes_s=10.0), is_repeatable=False))
        assert await asyncio.gather(*map(bench.send, requests)) == [OK] * 20
        # The oldest eight are suspect, seven of them may be sent again: one after the other, and the rest beside them.
        assert loop.time() == pytest.approx(2.0 + 7 * 0.1, abs=0.05)
        assert [len(request.sent) for request in requests] == [2] * 20
    assert left.result() == OK, "it must not be computed twice, and may be answered yet"


@pytest.mark.parametrize(("deaths", "is_answered"), [(2, True), (3, True), (4, False)])
async def test_one_that_a_query_of_death_takes_with_it_twice_is_sent_on_but_not_for_ever(deaths: int, is_answered: bool) -> None:
    bench, loop = Bench(), asyncio.get_running_loop()
    bench.servers.suspect = lambda *_: None
    for death in range(deaths):
        loop.call_later(0.5 + 2 * death, bench.servers.under_repair.show, {"a": loop.time() + 9.0})
        loop.call_later(1.0 + 2 * death, bench.servers.under_repair.show, {})
    innocent = Request([OK], takes_s=1.9)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):  # who came before it is suspect
            tasks.create_task(bench.send(Request([OK], takes_s=20.0), is_repeatable=False))
        await asyncio.sleep(0.1)
        if is_answered:
            assert await bench.send(innocent) == OK
        else:
            with pytest.raises(UpstreamUnavailable, match="has died"):
                await bench.send(innocent)
    assert len(innocent.sent) == min(deaths, 3) + 1


async def test_one_that_triton_calls_dead_and_that_is_ended_then_has_died_once() -> None:
    """A stub that stands still, as one that is stopped does."""
    bench, loop = Bench(), asyncio.get_running_loop()

    def ended(*_: object) -> None:
        loop.call_later(1.5, bench.servers.under_repair.show, {"a": loop.time() + 2.0})
        loop.call_later(3.0, bench.servers.under_repair.show, {})

    bench.servers.suspect = ended
    request = Request([DEAD, OK], takes_s=1.0)
    loop.call_later(0.5, setattr, request, "takes_s", 30.0)  # sent again, it waits for the copy that stands still
    loop.call_later(2.0, setattr, request, "takes_s", 0.1)
    assert await bench.send(request) == OK
    assert len(request.sent) == 3


async def test_what_takes_long_at_another_model_is_left_alone() -> None:
    bench, loop = Bench(), asyncio.get_running_loop()
    bench.servers.suspect = lambda *_: None
    loop.call_later(0.5, bench.servers.under_repair.show, {"b": loop.time() + 2.0})
    request = Request([OK], takes_s=3.0)
    assert await bench.send(request) == OK
    assert len(request.sent) == 1


async def test_a_callers_end_is_no_recall() -> None:
    bench = Bench()
    bench.servers.suspect = lambda *_: None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await bench.send(Request([OK], takes_s=3.0))
