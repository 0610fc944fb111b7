"""Callers of the HTTP client that leave or have no time left, and what becomes of their slots."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.protocols.http1 import HttpRequest
from control_plane.triton.adapters.http.client import HttpClient
from tests.aio import run
from tests.fakes.slot import FakeSlot
from tests.unit.triton.adapters.http_bench import REQUEST, Gate, assert_all_slots_are_there, failure, pool, send
from tests.unit.triton.adapters.scripted_triton import Exchange, ScriptedTriton, answer_ok


class TestLeaving:
    async def test_cancelling_closes_the_connection_and_gives_the_slot_back(self) -> None:
        async with pool(Gate(), limit=1) as (http, triton):
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(send(http))
                await triton.arrivals.get()
                task.cancel()
            await triton.wait_until_open(0)
            await assert_all_slots_are_there(http, triton, 1)

    async def test_the_deadline_closes_the_connection_and_gives_the_slot_back(self) -> None:
        async with pool(Gate(), limit=1) as (http, triton):
            assert "did not answer within the request's deadline" in await failure(http, DeadlineExceeded, timeout_s=0.05)
            await triton.wait_until_open(0)
            await assert_all_slots_are_there(http, triton, 1)

    async def test_an_answer_that_comes_too_late_is_nobodys(self) -> None:
        gate = Gate()
        async with pool(gate, limit=1) as (http, triton):
            await failure(http, DeadlineExceeded, timeout_s=0.05)
            gate.let(0)
            triton.script = answer_ok
            assert (await http.send(HttpRequest(b"GET", b"/second"), timeout_s=20)).status == 200
            assert triton.accepted == 2

    async def test_the_deadline_of_one_that_was_answered_is_not_the_next_ones(self) -> None:
        gate = Gate()
        async with pool(gate, limit=1) as (http, triton):
            gate.let(0)
            await send(http, timeout_s=0.1)
            async with asyncio.TaskGroup() as tasks:
                second = tasks.create_task(send(http))
                await asyncio.sleep(0.15)
                gate.let(1)
            assert second.result().status == 200
            assert triton.accepted == 1

    async def test_no_time_left_is_a_deadline_and_no_hanging(self) -> None:
        async with pool(Gate(), limit=1) as (http, triton):
            with pytest.raises((DeadlineExceeded, UpstreamUnavailable)):
                await send(http, timeout_s=0.0)
            await assert_all_slots_are_there(http, triton, 1)

    @pytest.mark.parametrize("turns", range(12))
    def test_leaving_as_the_answer_arrives_leaves_no_connection_behind(self, turns: int) -> None:
        """A connection that is neither used nor closed would hold up Triton's exit."""

        async def main() -> None:
            gate = Gate()
            async with pool(gate, limit=1) as (http, triton):
                async with asyncio.TaskGroup() as tasks:
                    task = tasks.create_task(send(http))
                    await triton.arrivals.get()
                    gate.let(0)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                await triton.wait_until_open(0 if task.cancelled() else 1)
                await assert_all_slots_are_there(http, triton, 1)
                await triton.wait_until_open(1)

        run(main(), loop_factory=asyncio.SelectorEventLoop)


class TestLeavingWhatTritonComputes:
    """Callers of inference requests leave; Triton goes on, and the slot is free when it has ended."""

    async def _left(self, http: HttpClient, triton: ScriptedTriton, slot: FakeSlot, how: str) -> None:
        if how == "late":
            with pytest.raises(DeadlineExceeded):
                await http.send(REQUEST, timeout_s=0.05, slot=slot)
            await triton.arrivals.get()
        else:
            async with asyncio.TaskGroup() as tasks:
                sent = tasks.create_task(http.send(REQUEST, timeout_s=20.0, slot=slot))
                await triton.arrivals.get()
                sent.cancel()
        assert slot.kept == 1

    @pytest.mark.parametrize("how", ["cancelled", "late"])
    async def test_the_slot_is_kept_until_triton_answers_and_the_connection_serves_the_next(self, how: str) -> None:
        gate, slot = Gate(), FakeSlot()
        async with pool(gate, limit=1) as (http, triton):
            await self._left(http, triton, slot, how)
            gate.let(0)
            await slot.free.wait()
            gate.let(1)
            assert (await http.send(REQUEST, timeout_s=20.0, slot=FakeSlot())).status == 200
            assert triton.accepted == 1
            assert slot.kept == 0

    async def test_no_longer_than_for_a_while(self) -> None:
        slot = FakeSlot()
        async with pool(Gate(), limit=1) as (http, triton):
            await self._left(http, triton, slot, "cancelled")
            await slot.free.wait()
            await triton.wait_until_open(0)
            await assert_all_slots_are_there(http, triton, 1)

    async def test_longer_where_triton_has_much_to_do_before(self) -> None:
        gate, slot = Gate(), FakeSlot(expected_s=30.0)
        async with pool(gate, limit=1) as (http, triton):
            await self._left(http, triton, slot, "cancelled")
            await asyncio.sleep(1.3)
            assert slot.kept == 1
            gate.let(0)
            await slot.free.wait()

    @pytest.mark.parametrize("answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"])
    async def test_what_is_no_whole_answer_ends_it_and_costs_the_connection(self, answer: bytes) -> None:
        slot, may_answer = FakeSlot(), asyncio.Event()

        async def scripted(exchange: Exchange) -> bytes:
            await may_answer.wait()
            return answer

        async with pool(scripted, limit=1) as (http, triton):
            await self._left(http, triton, slot, "cancelled")
            may_answer.set()
            await slot.free.wait()
            await triton.wait_until_open(0)
            await assert_all_slots_are_there(http, triton, 1)

    async def test_a_close_ends_it(self) -> None:
        slot = FakeSlot()
        async with pool(Gate()) as (http, triton):
            await self._left(http, triton, slot, "late")
            await http.close()
            await slot.free.wait()

    async def test_answered_as_its_caller_leaves_nothing_is_kept_for_long(self) -> None:
        for turns in range(12):
            gate, slot = Gate(), FakeSlot()
            async with pool(gate, limit=1) as (http, triton):
                async with asyncio.TaskGroup() as tasks:
                    task = tasks.create_task(http.send(REQUEST, timeout_s=20.0, slot=slot))
                    await triton.arrivals.get()
                    gate.let(0)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                if slot.was_kept.is_set():
                    await slot.free.wait()
                assert slot.kept == 0
                await assert_all_slots_are_there(http, triton, 1)

    async def test_some_connections_are_not_for_inference(self) -> None:
        gate = Gate()
        async with pool(gate, limit=8) as (http, triton), asyncio.TaskGroup() as tasks:
            for _ in range(20):
                tasks.create_task(http.send(REQUEST, timeout_s=20.0, slot=FakeSlot()))
            for _ in range(7):
                await triton.arrivals.get()
            health = tasks.create_task(send(http))
            await triton.arrivals.get()
            gate.let(7)
            assert (await health).status == 200
            gate.let(*range(21))
