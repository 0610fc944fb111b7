"""How many requests travel to Triton at once, and what closing does with them and with those that wait."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.protocols.http1 import HttpRequest
from tests.aio import run, settle
from tests.unit.triton.adapters.http_bench import Gate, assert_all_slots_are_there, failure, pool, send


class TestLimit:
    async def test_no_more_than_the_limit_travel_at_once_and_the_rest_go_in_order(self) -> None:
        gate = Gate()
        async with pool(gate, limit=2) as (http, triton):
            done: list[int] = []

            async def one(number: int) -> None:
                await http.send(HttpRequest(b"POST", b"/%d" % number), timeout_s=20)
                done.append(number)

            async with asyncio.TaskGroup() as tasks:
                for number in range(6):
                    tasks.create_task(one(number))
                    await settle()
                for number in range(6):
                    gate.let((await triton.arrivals.get()).number)
                    assert triton.in_progress <= 2, number
            assert [exchange.request.split()[1] for exchange in triton.exchanges] == [b"/%d" % number for number in range(6)]
            assert sorted(done) == list(range(6))
            assert triton.accepted == 2

    async def test_waiting_for_a_slot_ends_at_the_deadline(self) -> None:
        gate = Gate()
        async with pool(gate, limit=1) as (http, triton):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(send(http))
                await triton.arrivals.get()
                assert "all connections to Triton were busy" in await failure(http, DeadlineExceeded, timeout_s=0.05)
                gate.let(0)
            await assert_all_slots_are_there(http, triton, 1)

    @pytest.mark.parametrize("who", [1, 2, 3])
    async def test_one_that_stops_waiting_gives_its_place_to_the_next(self, who: int) -> None:
        gate = Gate()
        async with pool(gate, limit=1) as (http, triton):
            async with asyncio.TaskGroup() as tasks:
                sent = [tasks.create_task(http.send(HttpRequest(b"POST", b"/%d" % number), timeout_s=20)) for number in range(4)]
                await triton.arrivals.get()
                sent[who].cancel()
                gate.let(0, 1, 2)
            assert [exchange.request.split()[1] for exchange in triton.exchanges] == [b"/%d" % n for n in range(4) if n != who]
            await assert_all_slots_are_there(http, triton, 1)

    @pytest.mark.parametrize("turns", range(8))
    def test_one_that_leaves_as_its_turn_comes_passes_the_turn_on(self, turns: int) -> None:
        async def main() -> None:
            gate = Gate()
            async with pool(gate, limit=1) as (http, triton):
                async with asyncio.TaskGroup() as tasks:
                    first = tasks.create_task(send(http))
                    await triton.arrivals.get()
                    second, third = tasks.create_task(send(http)), tasks.create_task(send(http))
                    await settle()
                    gate.let(0, 1, 2)
                    while not first.done():
                        await asyncio.sleep(0)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    second.cancel()
                    assert (await third).status == 200
                await assert_all_slots_are_there(http, triton, 1)

        run(main(), loop_factory=asyncio.SelectorEventLoop)


class TestClose:
    async def test_fails_what_is_in_flight_and_what_waits(self) -> None:
        async with pool(Gate(), limit=2) as (http, triton):
            async with asyncio.TaskGroup() as tasks:
                failing = [tasks.create_task(failure(http, UpstreamUnavailable)) for _ in range(4)]
                for _ in range(2):
                    await triton.arrivals.get()
                await http.close()
            assert len({task.result() for task in failing}) == 2
            assert triton.accepted == 2, "one that waited opened a connection after the close"

    async def test_closes_idle_connections(self) -> None:
        async with pool() as (http, triton):
            await send(http)
            await http.close()
            await triton.wait_until_open(0)

    async def test_nothing_is_sent_afterwards(self) -> None:
        async with pool() as (http, triton):
            await send(http)
            await http.close()
            assert "connections to Triton have been closed" in await failure(http, UpstreamUnavailable)
            assert triton.accepted == len(triton.exchanges) == 1

    async def test_a_connection_that_is_being_opened_is_closed_too(self) -> None:
        async with pool() as (http, triton):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(failure(http, UpstreamUnavailable))
                await asyncio.sleep(0)
                await http.close()
            await triton.wait_until_open(0)
            assert triton.exchanges == []

    async def test_closing_twice_is_closing_once(self) -> None:
        async with pool() as (http, _):
            await http.close()
            await http.close()
