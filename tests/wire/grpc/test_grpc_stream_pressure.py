"""Back-pressure of ModelStreamInfer: if one side opens no window, the other one waits."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import grpc.aio
import h2.events
import h2.settings

from control_plane.protocols.kserve.tensors.bytes_tensor import encode_bytes_elements
from tests.aio import settle
from tests.wire.grpc.grpc_streams_bench import begun, has_ended, opened, request, send
from tests.wire.grpc_frontend import LIMITS, frontend, infer_message, until


class TestBackPressure:
    async def test_a_triton_that_has_no_room_holds_the_client_back(self) -> None:
        async with frontend() as it:
            call, stream = await begun(it)
            stream.may_send.clear()
            written = 0

            async def write() -> None:
                nonlocal written
                for _ in range(100):
                    await call.write(infer_message(padding=500_000))
                    written += 1
                await call.done_writing()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(write())
                before = -1
                while written != before:
                    before = written
                    await asyncio.sleep(0.1)
                assert written < 50
                stream.may_send.set()
                for _ in range(100):
                    assert await stream.sent.get() is not None
            stream.end()
            assert await has_ended(call)
            assert await call.code() is grpc.StatusCode.OK

    async def test_large_messages_that_wait_hold_it_back_sooner(self) -> None:
        large = infer_message(datatype="BYTES", content=encode_bytes_elements([bytes(8 << 20)]))

        async with frontend(limits=replace(LIMITS, max_message_bytes=16 << 20)) as it:
            call, stream = await begun(it)
            stream.may_send.clear()
            written = 0

            async def write() -> None:
                nonlocal written
                for _ in range(8):
                    await call.write(large)
                    written += 1
                await call.done_writing()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(write())
                before = -1
                while written != before or written < 2:
                    before = written
                    await asyncio.sleep(0.2)
                assert written <= 3  # one with Triton, one in the queue, and what the client's own library takes
                stream.may_send.set()
                for _ in range(8):
                    assert await stream.sent.get() == large
            stream.end()
            assert await has_ended(call)

    async def test_a_client_that_gives_no_room_holds_triton_back(self) -> None:
        async with frontend() as it:
            peer = await opened(it)
            peer.reads_on = False
            await send(peer, request())
            stream = await it.upstream.grpc.streams.get()
            for _ in range(100):
                stream.put(bytes(10_000))
            await until(lambda: stream.received >= 6)
            await settle()
            assert stream.received < 10
            got = 0
            peer.reads_on = True
            peer.state.increment_flow_control_window(1 << 20)
            peer.state.increment_flow_control_window(1 << 20, 1)
            await peer.flush()
            while got < 100 * 10_005:
                got += len((await peer.wait_for(h2.events.DataReceived)).data)
            stream.end()
            peer.state.end_stream(1)
            await peer.flush()
            assert dict((await peer.wait_for(h2.events.TrailersReceived)).headers)["grpc-status"] == "0"

    async def test_a_client_that_leaves_while_it_gives_no_room(self) -> None:
        async with frontend() as it:
            peer = await opened(it, settings={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
            await send(peer, request())
            stream = await it.upstream.grpc.streams.get()
            stream.put(bytes(10_000))
            await until(lambda: stream.received)
            peer.state.reset_stream(1)
            await peer.flush()
            await stream.cancelled.wait()
            await until(lambda: it.open_streams == 0)

    async def test_a_status_behind_an_answer_that_had_no_room_comes_when_it_has(self) -> None:
        async with frontend() as it:
            peer = await opened(it, settings={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 3})
            await send(peer, request())
            stream = await it.upstream.grpc.streams.get()
            stream.put(b"abc")
            stream.end()
            peer.state.end_stream(1)
            await peer.flush()
            peer.reads_on = False
            assert len((await peer.wait_for(h2.events.DataReceived)).data) == 3
            peer.state.increment_flow_control_window(100, 1)
            await peer.flush()
            assert (await peer.wait_for(h2.events.DataReceived)).data == b"\0\3abc"[-5:]
            assert dict((await peer.wait_for(h2.events.TrailersReceived)).headers)["grpc-status"] == "0"
