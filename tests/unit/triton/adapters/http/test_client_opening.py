"""Connections of the HTTP client that are opened together, and requests that are written together."""

from __future__ import annotations

import asyncio
import socket

import pytest

from control_plane.core.endpoints import TcpAddress
from control_plane.core.errors import UpstreamUnavailable
from control_plane.triton.adapters.http.client import HttpClient
from tests.aio import settle
from tests.fakes.held_writes import HeldWrites
from tests.unit.triton.adapters.http_bench import Gate, assert_all_slots_are_there, failure, pool, send
from tests.unit.triton.adapters.scripted_triton import OK


class TestOpenedTogether:
    """Triton spreads connections over its threads only if they come at the same time."""

    async def test_the_first_request_opens_several_and_later_ones_use_them(self) -> None:
        async with pool(Gate(), limit=10, together=4) as (http, triton):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(4):
                    tasks.create_task(send(http))
                    await triton.arrivals.get()
                await triton.wait_until_open(4)
                tasks.create_task(send(http))
                await triton.arrivals.get()
                await triton.wait_until_open(8)
                triton.script.let(*range(5))  # type: ignore[attr-defined]
            assert triton.accepted == 8
            await assert_all_slots_are_there(http, triton, 10)

    @pytest.mark.parametrize(("limit", "together"), [(3, 8), (1, 8), (8, 8)])
    async def test_there_are_never_more_than_allowed(self, limit: int, together: int) -> None:
        async with pool(limit=limit, together=together) as (http, triton):
            await asyncio.gather(*(send(http) for _ in range(3 * limit)))
            await triton.wait_until_open(limit)
            assert len(http.open) <= limit
            await assert_all_slots_are_there(http, triton, limit)

    async def test_whoever_leaves_meanwhile_leaves_his_to_others(self) -> None:
        for turns in range(12):
            async with pool(limit=4, together=4) as (http, triton):
                leaving = asyncio.ensure_future(send(http))  # noqa: TID251  # cancelled in each of the first turns
                for _ in range(turns):
                    await asyncio.sleep(0)
                leaving.cancel()
                await asyncio.wait([leaving])
                await assert_all_slots_are_there(http, triton, 4)
                assert len(http.open) <= 4

    async def test_a_close_meanwhile_closes_them(self) -> None:
        async with pool(limit=9, together=9) as (http, triton):
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(failure(http, UpstreamUnavailable))
                while not http.open:
                    await asyncio.sleep(0)
                await http.close()
            assert "closed" in task.result()
            await triton.wait_until_open(0)

    async def test_a_triton_that_takes_one_only_answers_that_one(self) -> None:
        """The others are never accepted: its queue of connections is full."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            http = HttpClient(TcpAddress("127.0.0.1", listener.getsockname()[1]), max_connections=64, opened_together=64)

            def answer() -> None:
                accepted = listener.accept()[0]
                with accepted:
                    accepted.recv(1 << 16)
                    accepted.sendall(OK)

            answering = asyncio.create_task(asyncio.to_thread(answer))  # noqa: TID251  # awaited below
            assert (await send(http)).status == 200
            await answering
            await http.close()


class TestPutOffRequests:
    """Requests beside others are written at the end of the turn of the event loop."""

    async def test_one_that_is_alone_is_written_at_once(self) -> None:
        async with pool() as (http, _):
            http.writes = writes = HeldWrites()
            await send(http)
            await send(http)
            assert not writes.held

    async def test_one_beside_others_is_written_with_those_of_its_turn(self) -> None:
        gate = Gate()
        async with pool(gate) as (http, triton), asyncio.TaskGroup() as tasks:
            tasks.create_task(send(http))
            await triton.arrivals.get()
            http.writes = writes = HeldWrites()
            tasks.create_task(send(http))
            await triton.wait_until_open(2)
            await settle()
            assert len(triton.exchanges) == 1
            writes.held[0].flush()
            await triton.arrivals.get()
            gate.let(0, 1)

    async def test_one_whose_connection_is_closed_before_was_not_sent(self) -> None:
        gate = Gate()
        async with pool(gate) as (http, triton), asyncio.TaskGroup() as tasks:
            first = tasks.create_task(failure(http, UpstreamUnavailable))
            await triton.arrivals.get()
            http.writes = writes = HeldWrites()
            second = tasks.create_task(_lost(http))
            await triton.wait_until_open(2)
            await settle()
            await http.close()
            await first
            assert (await second).is_not_sent
            writes.held[0].flush()
            await triton.wait_until_open(0)
            assert len(triton.exchanges) == 1


async def _lost(http: HttpClient) -> UpstreamUnavailable:
    with pytest.raises(UpstreamUnavailable) as caught:
        await send(http)
    return caught.value
