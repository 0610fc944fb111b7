from __future__ import annotations

import asyncio

import pytest

from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.triton.adapters.http.client import HttpClient
from control_plane.triton.adapters.http.large_json import comes_to_be_parsed
from tests.aio import settle
from tests.unit.triton.adapters.http_bench import Gate, assert_all_slots_are_there, pool
from tests.unit.triton.adapters.scripted_triton import Exchange, ScriptedTriton

LARGE_BYTES = 1_100_000


class TestComesToBeParsed:
    async def test_when_it_has_been_written_and_read(self) -> None:
        left = [True, True, False]
        assert await comes_to_be_parsed(LARGE_BYTES, lambda: left.pop(0), asyncio.get_running_loop().create_future())
        assert not left

    async def test_not_what_is_parsed_at_once(self) -> None:
        assert not await comes_to_be_parsed(1_000_000, lambda: False, asyncio.get_running_loop().create_future())

    @pytest.mark.parametrize("is_writing", [True, False])
    async def test_not_what_is_answered_before(self, is_writing: bool) -> None:
        answer = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(answer.set_result, None)
        assert not await comes_to_be_parsed(10**12, lambda: is_writing, answer)


class TestOthersAreOpened:
    """Triton gives connections that come while one of its HTTP threads parses JSON to other threads."""

    async def sent(
        self, http: HttpClient, triton: ScriptedTriton, tasks: asyncio.TaskGroup, body: bytes = b"{}"
    ) -> tuple[asyncio.Task[HttpAnswer], Exchange]:
        request = HttpRequest(b"POST", b"/v2/models/m/infer", [], body)
        return tasks.create_task(http.send(request, timeout_s=60.0)), await triton.arrivals.get()

    async def test_and_taken_by_small_requests_once_for_a_connection_with_large_json(self) -> None:
        gate, large = Gate(), b"1" * LARGE_BYTES
        async with pool(gate, limit=20, together=4) as (http, triton), asyncio.TaskGroup() as tasks:
            first, exchange = await self.sent(http, triton, tasks)
            gate.let(exchange.number)
            await first
            beside, parsed = await self.sent(http, triton, tasks, large)
            await triton.wait_until_open(7)
            await settle()
            for _ in range(2):
                small, exchange = await self.sent(http, triton, tasks)
                assert exchange.connection in {4, 5, 6}
                gate.let(exchange.number)
                await small
            gate.let(parsed.number)
            await beside
            again, exchange = await self.sent(http, triton, tasks, large)
            assert exchange.connection == parsed.connection < 4
            await comes_to_be_parsed(8 * LARGE_BYTES, lambda: False, again)  # for as long as the first one was waited for
            gate.let(exchange.number)
            await again
            assert triton.accepted == 7

    async def test_also_beside_json_that_a_slow_model_has_had_for_long_and_that_is_not_parsed_any_more(self) -> None:
        gate = Gate()
        async with pool(gate, limit=20, together=4) as (http, triton), asyncio.TaskGroup() as tasks:
            slow, computed = await self.sent(http, triton, tasks, b"1" * 300_000)
            large, parsed = await self.sent(http, triton, tasks, b"1" * LARGE_BYTES)
            await triton.wait_until_open(7)
            for exchange in (computed, parsed):
                gate.let(exchange.number)
            await asyncio.wait([slow, large])

    async def test_and_whoever_leaves_meanwhile_leaves_nothing_behind(self) -> None:
        async with pool(Gate(), limit=4, together=4) as (http, triton), asyncio.TaskGroup() as tasks:
            beside, _ = await self.sent(http, triton, tasks, b"1" * LARGE_BYTES)
            (connection,) = (each for each in http.open if each.is_computing)
            answer = connection._answer
            beside.cancel()
            await asyncio.wait([beside])
            assert answer is not None
            assert answer.cancelled()  # a connection that is lost would else fail one that nobody awaits
            await assert_all_slots_are_there(http, triton, 4)
