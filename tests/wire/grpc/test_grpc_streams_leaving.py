"""The end of ModelStreamInfer calls by their clients, their deadlines or the gateway's own end."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc
import grpc.aio
import h2.events
import h2.settings
import pytest

from control_plane.core.infer_call import Outcome
from control_plane.frontends.common import connection_server
from tests.wire import services
from tests.wire.grpc.grpc_streams_bench import answer, begun, has_ended, opened, request, send
from tests.wire.grpc_frontend import frontend, until


async def test_a_cancelled_call_is_cancelled_in_triton() -> None:
    async with frontend() as it:
        call, stream = await begun(it)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call.read()
        await stream.cancelled.wait()
        await until(lambda: it.inference.in_flight == 0)
        assert it.recorder.outcomes == [Outcome.ABANDONED]


async def test_a_lost_connection_too() -> None:
    async with frontend() as it:
        peer = await opened(it)
        await send(peer, request())
        stream = await it.upstream.grpc.streams.get()
        await peer.close()
        await stream.cancelled.wait()
        await until(lambda: it.recorder.outcomes == [Outcome.ABANDONED])


async def test_the_deadline_ends_it_here_too() -> None:
    async with frontend() as it:
        call = it.stream(timeout=0.3)
        await call.write(request())
        stream = await it.upstream.grpc.streams.get()
        assert await has_ended(call)
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await stream.cancelled.wait()
        await until(lambda: it.recorder.records)
        assert it.recorder.outcomes[0] in (Outcome.DEADLINE_EXCEEDED, Outcome.ABANDONED)  # whoever notices first


async def test_a_client_that_waits_for_the_deadline_is_told() -> None:
    async with frontend() as it:
        peer = await opened(it, ("grpc-timeout", "50m"))
        ended = await peer.wait_for(h2.events.ResponseReceived)
        assert dict(ended.headers)["grpc-status"] == "4"
        assert it.recorder.outcomes == [Outcome.DEADLINE_EXCEEDED]


async def test_what_is_in_flight_finishes_while_the_server_drains() -> None:
    async with frontend() as it:
        call, stream = await begun(it)
        async with asyncio.TaskGroup() as tasks:
            draining = tasks.create_task(it.server.drain(20))
            await asyncio.sleep(0.05)
            assert not draining.done()
            await call.write(request(id_="2"))
            assert await stream.sent.get() == request(id_="2")
            stream.put(answer("last"))
            stream.end()
            await call.done_writing()
            assert await call.read() == answer("last")
            assert await has_ended(call)
            assert await call.code() is grpc.StatusCode.OK


async def test_one_in_which_nothing_happens_does_not_hold_up_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_server, "_MAX_SWEEP_S", 0.02)
    async with frontend() as it:
        it.upstream.control.decoupled["m"] = False
        call = it.stream()
        await call.write(request(id_="1"))
        await call.read()
        await it.server.drain(10_000)
        assert await has_ended(call)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert await call.details() == "the gateway is stopping; try again shortly"


async def test_nor_does_one_to_a_decoupled_model_that_has_been_silent_for_as_long_as_requests_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_server, "_MAX_SWEEP_S", 0.02)
    monkeypatch.setattr(services, "READ_TIMEOUT_S", 0.5)
    async with frontend() as it:
        call, stream = await begun(it)
        loop = asyncio.get_running_loop()
        heard_s = stream.heard_s = loop.time() + 0.5
        stream.put(answer("a"))
        await call.read()
        await it.server.drain(10_000)
        assert loop.time() >= heard_s + 0.5
        assert await has_ended(call)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_what_outlasts_a_drain_is_told_so() -> None:
    async with frontend() as it:
        call, stream = await begun(it)
        await it.server.drain(0.05)
        assert await has_ended(call)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert await call.details() == "the gateway is stopping; try again shortly"
        await stream.cancelled.wait()
