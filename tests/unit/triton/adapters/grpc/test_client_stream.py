"""Streams of the gRPC client of Triton."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import grpc
import h2.errors
import h2.events
import h2.settings

from control_plane.protocols.grpc import GrpcHead, answer_of, frame_message
from tests.aio import settle
from tests.unit.triton.adapters.grpc_bench import CONTENT_TYPE, STREAM_HEAD, UNAVAILABLE, call, greeting, received, scripted, triton


class TestStreams:
    async def test_messages_both_ways(self) -> None:
        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for message in messages:
                yield message
                yield message[::-1]

        async with triton(stream=stream) as (client, _):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            assert it.heard_s == -inf
            for message in (b"", b"ab", bytes(1 << 20)):
                it.heard_s = -inf
                await it.send(frame_message(message))
                assert [await received(it), await received(it)] == [message, message[::-1]]
                assert it.heard_s > -inf
            it.half_close()
            assert await it.receive() is None
            assert answer_of(it.headers, (), it.trailers).code == 0
            assert (b":status", b"200") in it.headers

    async def test_what_has_come_is_taken_without_a_wait(self) -> None:
        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            for message in (b"one", b"two", b"three"):
                yield message

        async with triton(stream=stream) as (client, _):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            assert it.take() is None
            assert await received(it) == b"one"
            while len(it._frames) < 2:
                await asyncio.sleep(0.01)
            assert [it.take() for _ in range(3)] == [frame_message(b"two"), frame_message(b"three"), None]
            assert await it.receive() is None, "taking does not swallow the end"

    async def test_a_status_ends_it_before_its_caller_has_finished(self) -> None:
        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            yield b"one"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "enough")

        async with triton(stream=stream) as (client, _):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            assert await received(it) == b"one"
            assert await it.receive() is None
            await asyncio.sleep(0.05)  # what grpc's server sends behind the status changes nothing
            assert not it.is_broken_off
            answer = answer_of(it.headers, (), it.trailers)
            assert (answer.code, answer.details) == (9, "enough")
            await it.send(frame_message(b"too late"))
            it.half_close()
            it.cancel()
            assert not any(each.state.streams for each in client._open)

    async def test_cancelling_ends_it_in_triton(self) -> None:
        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            yield b"one"
            await asyncio.Event().wait()

        async with triton(stream=stream) as (client, fake):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            assert await received(it) == b"one"
            it.cancel()
            it.cancel()
            await fake.cancelled.wait()
            assert await it.receive() is None

    async def test_one_that_ends_by_itself_is_not_cancelled(self) -> None:
        """Triton 24.10 sometimes crashes when a stream is cancelled while it sends responses on it."""
        ended_well = asyncio.Event()

        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            yield b"one"
            async for _ in messages:
                pass
            yield b"two"
            ended_well.set()

        async with triton(stream=stream) as (client, fake):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            assert await received(it) == b"one"
            it.cancel()
            await ended_well.wait()
            while any(each.state.streams for each in client._open):
                await asyncio.sleep(0)
            assert not fake.cancelled.is_set()

    async def test_a_reader_that_is_slow_holds_triton_back_and_nobody_else(self) -> None:
        sent = 0

        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            nonlocal sent
            for _ in range(200):
                yield bytes(1 << 18)
                sent += 1

        async with triton(stream=stream) as (client, _):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            other = await client.open_stream(GrpcHead("/other/Stream", (CONTENT_TYPE,)), timeout_s=10)
            before = -1
            while sent != before:
                before = sent
                await asyncio.sleep(0.2)
            assert sent < 150
            assert (await client.unary(call(bytes(1 << 20)), timeout_s=10)).code == 0
            for each in (it, other):
                for _ in range(200):
                    assert len(await received(each)) == 1 << 18
                assert await each.receive() is None

    async def test_they_share_no_connection_with_unary_calls(self) -> None:
        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for message in messages:
                yield message

        async with triton(stream=stream) as (client, _):
            streams = [await client.open_stream(STREAM_HEAD, timeout_s=10) for _ in range(2)]
            assert len(client._open) == 1
            for message in (b"small", bytes(1 << 19)):
                assert (await client.unary(call(message), timeout_s=10)).message == message
            assert len(client._open) == 3  # what slow readers leave waiting fills a window that no unary call needs
            for each in streams:
                each.half_close()
                assert await each.receive() is None

    async def test_a_triton_that_does_not_read_holds_the_sender_back(self) -> None:
        may_read = asyncio.Event()

        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            yield b"begun"
            await may_read.wait()
            count = 0
            async for _ in messages:
                count += 1
            yield b"%d" % count

        async with triton(stream=stream) as (client, _):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            await received(it)
            sent = 0

            async def send() -> None:
                nonlocal sent
                for _ in range(100):
                    await it.send(frame_message(bytes(1 << 20)))
                    sent += 1
                it.half_close()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(send())
                before = -1
                while sent != before:
                    before = sent
                    await asyncio.sleep(0.2)
                assert sent < 90
                may_read.set()
                assert await received(it) == b"100"

    async def test_a_lost_connection_ends_it_as_unavailable(self) -> None:
        async with scripted(greeting) as (client, peers):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            await settle()
            await peers[0].wait_for(h2.events.RequestReceived)
            await peers[0].close()
            assert await it.receive() is None
            assert it.is_broken_off
            answer = answer_of(it.headers, (), it.trailers)
            assert (answer.code, answer.details) == (UNAVAILABLE, "Triton closed the connection before it answered")
