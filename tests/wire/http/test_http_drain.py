"""Drain: requests in flight finish, idle connections close at once, and nothing lasts longer than the
timeout; what it cuts short is told so."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.infer_call import Outcome
from control_plane.protocols.http1 import make_answer
from tests.fakes import FakeHttp, FakeUpstream
from tests.wire.gateway import INFER, LIVE, Gateway, gateway, infer_request

LONG_S = 100.0


STOPPING = b'{"error":"the gateway is stopping; try again shortly"}'


async def read_by(frontend: Gateway) -> None:
    """Wait until the server has read that a request has begun."""
    while all(connection._reader.is_between_requests for connection in frontend.server._connections):
        await asyncio.sleep(0.001)


def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("sent", [b"", LIVE[:20], infer_request()[:-1]], ids=["idle", "within a head", "within a body"])
async def test_connections_without_a_request_that_was_read_are_closed_at_once(sent: bytes) -> None:
    async with gateway() as frontend:
        client = await frontend.connect()
        await client.ask(LIVE)
        await client.send(sent)
        started_s = now_s()
        await frontend.server.drain(LONG_S)
        assert now_s() - started_s < LONG_S / 2
        assert await client.is_closed_by_server()


async def test_a_request_within_its_head_is_refused_with_words() -> None:
    async with gateway() as frontend:
        client = await frontend.connect()
        await client.send(infer_request()[:20])
        await read_by(frontend)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(frontend.server.drain(LONG_S))
            refused = await client.answer()
            await client.close()
        assert (refused.status, refused.says_close, refused.body) == (503, True, STOPPING)
        assert b"\r\nRetry-After: 1\r\n" in refused.head


async def test_a_request_within_its_body_is_in_flight() -> None:
    request = infer_request()
    async with gateway() as frontend:
        client = await frontend.connect()
        await client.send(request[:-1])
        await read_by(frontend)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(frontend.server.drain(LONG_S))
            await asyncio.sleep(0.02)
            answer = await client.ask(request[-1:])
        assert (answer.body, answer.says_close) == (INFER, True)
        assert await client.is_closed_by_server()


async def test_once_it_is_announced_everything_is_served_and_each_answer_asks_for_the_connections_end() -> None:
    async with gateway() as frontend:
        before = await frontend.connect()
        assert not (await before.ask(infer_request())).says_close
        frontend.servers.is_stopping = True
        frontend.server.announce_drain()
        for client in (before, await frontend.connect()):
            answer = await client.ask(infer_request())
            assert (answer.status, answer.says_close) == (200, True)
            assert await client.is_closed_by_server()
        ready = await (await frontend.connect()).ask(LIVE.replace(b"live", b"ready"))
        assert (ready.status, ready.body) == (503, STOPPING)
        assert (await (await frontend.connect()).ask(LIVE)).status == 200
        assert frontend.recorder.outcomes == [Outcome.ANSWERED] * 3


async def test_with_nobody_connected_it_takes_no_time() -> None:
    async with gateway() as frontend:
        started_s = now_s()
        await frontend.server.drain(LONG_S)
        assert now_s() - started_s < LONG_S / 2


async def test_what_is_in_flight_finishes_and_says_that_the_connection_ends() -> None:
    async with gateway() as frontend:
        frontend.upstream.http.calls.hold()
        client = await frontend.connect()
        await client.send(infer_request())
        await frontend.upstream.http.calls.arrivals.get()
        async with asyncio.TaskGroup() as tasks:
            draining = tasks.create_task(frontend.server.drain(LONG_S))
            await asyncio.sleep(0.02)
            assert not draining.done()
            frontend.upstream.http.calls.may_answer.set()
            answer = await client.answer()
        assert (answer.body, answer.says_close) == (INFER, True)
        assert await client.is_closed_by_server()
        assert frontend.recorder.outcomes == [Outcome.ANSWERED]


async def test_what_was_pipelined_behind_it_is_not_begun() -> None:
    async with gateway() as frontend:
        frontend.upstream.http.calls.hold()
        client = await frontend.connect()
        await client.send(infer_request() * 3)
        await frontend.upstream.http.calls.arrivals.get()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(frontend.server.drain(LONG_S))
            await asyncio.sleep(0)
            frontend.upstream.http.calls.may_answer.set()
            assert (await client.answer()).says_close
        assert await client.is_closed_by_server()
        assert len(frontend.upstream.http.requests) == 1


async def test_an_answer_that_is_being_read_is_sent_to_its_end() -> None:
    body = bytes(30 << 20)
    async with gateway(FakeUpstream(http=FakeHttp(answer=lambda _: make_answer(200, body)))) as frontend:
        client = await frontend.connect(receive_buffer_bytes=64 << 10)
        await client.send(infer_request())
        await client.reader.readexactly(1000)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(frontend.server.drain(LONG_S))
            await asyncio.sleep(0.02)
            rest = await client.reader.read(-1)
        assert len(rest) + 1000 > len(body)
        assert rest.endswith(body[-1000:])


async def test_new_clients_are_refused() -> None:
    async with gateway() as frontend:
        frontend.upstream.http.calls.hold()
        client = await frontend.connect()
        await client.send(infer_request())
        await frontend.upstream.http.calls.arrivals.get()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(frontend.server.drain(LONG_S))
            await asyncio.sleep(0)
            with pytest.raises(ConnectionError):
                await (await frontend.connect()).ask(LIVE)
            frontend.upstream.http.calls.may_answer.set()


async def test_what_outlasts_the_time_is_cut_off_and_told_so() -> None:
    async with gateway() as frontend:
        frontend.upstream.http.calls.hold()
        client, within_body = await frontend.connect(), await frontend.connect()
        await within_body.send(infer_request()[:-1])
        await read_by(frontend)
        await client.send(infer_request())
        await frontend.upstream.http.calls.arrivals.get()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(frontend.server.drain(0.05))
            for each in (client, within_body):
                answer = await each.answer()
                assert (answer.status, answer.body, answer.says_close) == (503, STOPPING, True)
                assert b"\r\nRetry-After: 1\r\n" in answer.head
                assert await each.is_closed_by_server()
                await each.close()
        await frontend.upstream.http.calls.cancelled.wait()
        assert frontend.recorder.outcomes == [Outcome.UNAVAILABLE], "its caller has not left"


async def test_a_client_that_does_not_read_its_answer_cannot_hold_it_up() -> None:
    async with gateway(FakeUpstream(http=FakeHttp(answer=lambda _: make_answer(200, bytes(30 << 20))))) as frontend:
        client = await frontend.connect(receive_buffer_bytes=64 << 10)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(infer_request())
        while not frontend.upstream.http.calls.answered:
            await asyncio.sleep(0)
        started_s = now_s()
        await frontend.server.drain(0.1)
        assert now_s() - started_s < LONG_S / 2


async def test_a_refused_client_that_goes_on_sending_cannot_hold_it_up() -> None:
    async with gateway() as frontend:
        client = await frontend.connect()
        await client.ask(b"garbage\r\n\r\n")
        started_s = now_s()
        await frontend.server.drain(LONG_S)
        assert now_s() - started_s < LONG_S / 2


async def test_twice_is_once() -> None:
    async with gateway() as frontend:
        await frontend.server.drain(LONG_S)
        await frontend.server.drain(LONG_S)
