"""Fate of streamed responses of an only server, and what they tell of their model."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from control_plane.core.errors import ControlPlaneError, QueryOfDeath, UpstreamFailed, UpstreamUnavailable
from control_plane.protocols.http1 import HttpAnswer
from control_plane.triton.ports import HttpStream
from tests.fakes import FakeHttpStream
from tests.unit.fleet.fleet_bench import call
from tests.unit.fleet.routing.dispatch_bench import KeptRequest, Request
from tests.unit.fleet.routing.faults.losses_bench import BROKE_OFF, DEAD, NOT_SENT, repeatable
from tests.unit.inference.dispatch.single_server_bench import OK, Bench

pytestmark = pytest.mark.virtual_time


async def _stream(bench: Bench, request: Request) -> HttpAnswer | HttpStream:
    return await bench.one.stream(request, call("a"), timeout_s=30.0, running=repeatable(False))


async def _first_piece(bench: Bench, *, takes_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(30.0):
            await _stream(bench, Request([FakeHttpStream()], takes_s))


async def test_a_model_that_begins_no_response_any_more_is_told_of_but_not_while_it_streams_another() -> None:
    bench, told = Bench(), list[float]()
    now_s = asyncio.get_running_loop().time
    bench.servers.suspect = lambda *suspected: told.append(now_s())
    stream = FakeHttpStream()
    held = await _stream(bench, Request([stream], 0.1))
    assert not isinstance(held, HttpAnswer)
    async with asyncio.TaskGroup() as tasks:
        for second in range(200):
            stream.heard_s = now_s()
            if not second % 10:  # who waits behind it gives up after half a minute
                tasks.create_task(_first_piece(bench, takes_s=1000.0))
            await asyncio.sleep(1.0)
        assert not told
        held.close()
        tasks.create_task(_first_piece(bench, takes_s=1000.0))
        tasks.create_task(_first_piece(bench, takes_s=1000.0))
    assert told


async def test_a_stream_that_was_not_begun_waits_for_the_next_triton_and_another_does_not() -> None:
    bench, stream = Bench(), FakeHttpStream()
    bench.restart()
    request = Request([NOT_SENT, stream])
    held = await _stream(bench, request)
    assert not isinstance(held, HttpAnswer)
    assert [server for server, _ in request.sent] == bench.upstreams
    held.close()
    assert stream.closed.is_set()
    bench.restart()
    with pytest.raises(UpstreamUnavailable, match="closed the connection"):
        await _stream(bench, Request([BROKE_OFF, stream]))


async def test_one_under_which_two_processes_die_before_its_first_piece_is_refused() -> None:
    bench = Bench()
    assert await _stream(bench, Request([DEAD], text="poison")) is DEAD
    await asyncio.sleep(6.0)  # it is loaded anew
    for _ in range(2):
        with pytest.raises(QueryOfDeath):
            await _stream(bench, Request([DEAD], text="poison"))
    held = await _stream(bench, Request([FakeHttpStream()], text="innocent"))
    assert not isinstance(held, HttpAnswer)
    held.close()


@pytest.mark.parametrize("fails", [BROKE_OFF, UpstreamFailed("Stub process 'a_0_0' is not healthy.")])
async def test_one_under_which_two_processes_die_after_its_first_piece_is_refused(fails: ControlPlaneError) -> None:
    bench = Bench()
    for expected in (type(fails), QueryOfDeath):
        held = await _stream(bench, Request([FakeHttpStream().put(b"x", fails)], text="poison"))
        assert not isinstance(held, HttpAnswer)
        assert await held.receive() == b"x"
        bench.restart()
        with pytest.raises(expected):
            await held.receive()
        held.close()
        await asyncio.sleep(6.0)
    with pytest.raises(QueryOfDeath):
        await _stream(bench, Request([FakeHttpStream()], text="poison"))


async def test_a_model_that_hangs_in_the_midst_of_a_stream_and_then_begins_no_other_is_told_of() -> None:
    bench, told = Bench(), list[str]()
    bench.servers.suspect = lambda server, model, since_s: told.append(model)
    held = await _stream(bench, Request([FakeHttpStream(heard_s=asyncio.get_running_loop().time()).put(b"x")]))
    assert not isinstance(held, HttpAnswer)
    assert await held.receive() == b"x"
    with suppress(TimeoutError):
        async with asyncio.timeout(20.0):
            await held.receive()
    held.close()
    assert not told, "one alone may have been given up for a pause"
    await _first_piece(bench, takes_s=1000.0)
    assert told == ["a"]


async def test_with_a_stub_its_streams_end_those_that_have_begun_and_those_that_have_not() -> None:
    bench = Bench()
    begun = await _stream(bench, Request([FakeHttpStream()], text="begun"))
    assert not isinstance(begun, HttpAnswer)
    loop = asyncio.get_running_loop()
    loop.call_later(0.1, bench.servers.under_repair.show, {"a": loop.time() + 1.0})
    for asking in (_stream(bench, Request([FakeHttpStream()], takes_s=5.0)), begun.receive()):
        with pytest.raises(UpstreamUnavailable, match="the Python process of 'a'"):
            await asking
    begun.close()
    bench.servers.under_repair.show({})
    assert bench.one.deaths.watches("a")
    held = await _stream(bench, Request([FakeHttpStream().put(b"x")], text="begun"))
    assert not isinstance(held, HttpAnswer)
    assert await held.receive() == b"x"
    held.close()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_what_a_dead_process_has_is_waited_for_by_no_slot(is_stream: bool) -> None:
    bench, loop, request = Bench(), asyncio.get_running_loop(), KeptRequest([OK], takes_s=5.0)
    bench.servers.suspect = lambda *suspected: None
    running = repeatable(not is_stream)
    running.permit.forsake = request.kept.clear
    loop.call_later(0.1, bench.servers.under_repair.show, {"a": loop.time() + 1.0})
    loop.call_later(0.2, bench.servers.under_repair.show, {})
    if is_stream:
        with pytest.raises(UpstreamUnavailable, match="the Python process of 'a'"):
            await bench.one.stream(request, call("a"), timeout_s=30.0, running=running)
    else:
        assert await bench.one.send(request, call("a"), timeout_s=30.0, running=running) is OK
    assert not request.kept


async def test_what_was_computed_beside_a_stream_is_suspect_too_when_triton_answers_it_a_second_later() -> None:
    bench, loop = Bench(), asyncio.get_running_loop()
    begun = await _stream(bench, Request([FakeHttpStream()], text="begun"))
    assert not isinstance(begun, HttpAnswer)
    loop.call_later(0.1, bench.servers.under_repair.show, {"a": loop.time() + 1.0})
    loop.call_later(1.0, bench.servers.under_repair.show, {})
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(bench.send(Request([DEAD], takes_s=1.3, text="killer"), is_repeatable=False))
        with pytest.raises(UpstreamUnavailable, match="has died"):
            await begun.receive()
        begun.close()
    assert sending.result() is DEAD
    with pytest.raises(QueryOfDeath):
        await bench.send(Request([DEAD], text="killer"), is_repeatable=False)


async def test_a_copy_whose_stub_triton_takes_for_dead_and_nobody_has_seen_to_die_is_told_of() -> None:
    bench, told = Bench(), list[str]()
    bench.servers.suspect = lambda server, model, since_s: told.append(model)
    await bench.send(Request([DEAD], takes_s=1.0), is_repeatable=False)
    assert told == ["a"]
    loop = asyncio.get_running_loop()
    loop.call_later(0.1, bench.servers.under_repair.show, {"a": loop.time() + 1.0})
    loop.call_later(0.5, bench.servers.under_repair.show, {})
    await bench.send(Request([DEAD], takes_s=1.0), is_repeatable=False)
    assert told == ["a"], "it is what is left of the copy that was loaded anew"
