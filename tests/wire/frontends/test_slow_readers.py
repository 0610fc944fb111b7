"""Clients that read a large answer little by little do not hold its memory for ever."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import replace

import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from control_plane.protocols.grpc import frame_message, message_answer
from control_plane.protocols.http1 import make_answer
from control_plane.protocols.http2 import frames
from tests.fakes import FakeGrpc, FakeHttp, FakeUpstream
from tests.unit.protocols.http2.http2_ends import data, headers
from tests.wire.gateway import LIMITS as HTTP_LIMITS
from tests.wire.gateway import gateway, infer_request
from tests.wire.grpc_frontend import LIMITS as GRPC_LIMITS
from tests.wire.grpc_frontend import frontend, infer_message
from tests.wire.h2_calls import RAW_HEAD, begin

ANSWER_BYTES = 128 << 20


async def read_slowly(port: int, sent: bytes) -> int:
    """Send this and read what comes at some 6 MB/s, at which the server can write every 0.2 s; returns how much came until the
    connection ended."""
    loop, own, got = asyncio.get_running_loop(), socket.socket(), 0
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    own.setblocking(False)
    with own, suppress(ConnectionError):
        await loop.sock_connect(own, ("127.0.0.1", port))
        await loop.sock_sendall(own, sent)
        while piece := await loop.sock_recv(own, 64 << 10):
            got += len(piece)
            await asyncio.sleep(0.01)
    return got


async def test_over_http_the_connection_is_dropped() -> None:
    upstream = FakeUpstream(http=FakeHttp(answer=lambda _: make_answer(200, bytes(ANSWER_BYTES))))
    async with gateway(upstream, replace(HTTP_LIMITS, header_timeout_s=0.5, body_timeout_s=0.5)) as it:
        assert 0 < await read_slowly(it.port, infer_request()) < ANSWER_BYTES


async def test_over_grpc_with_windows_for_all_of_it_the_connection_is_dropped() -> None:
    wide = frames.settings_frame({frames.Setting.INITIAL_WINDOW_SIZE: 1 << 30}) + frames.window_update(0, 1 << 30)
    call = headers(1, RAW_HEAD) + data(1, frame_message(infer_message()), ends=True)
    answering = FakeGrpc(answer=lambda _: message_answer(bytes(ANSWER_BYTES)))
    async with frontend(answering, limits=replace(GRPC_LIMITS, header_timeout_s=0.5, body_timeout_s=0.5)) as it:
        assert 0 < await read_slowly(it.port, frames.PREFACE + wide + call) < ANSWER_BYTES


async def test_over_grpc_the_call_is_ended() -> None:
    async with frontend(limits=replace(GRPC_LIMITS, body_timeout_s=0.2)) as it:
        peer = await it.peer(settings={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 100})
        peer.reads_on = False
        await begin(peer)
        peer.state.send_data(1, frame_message(infer_message(padding=2_000)), end_stream=True)
        await peer.flush()

        async def drip() -> None:
            with suppress(h2.exceptions.ProtocolError):  # the call is over
                while True:
                    peer.state.increment_flow_control_window(1, 1)
                    await peer.flush()
                    await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as tasks:
            dripping = tasks.create_task(drip())
            reset = await peer.wait_for(h2.events.StreamReset)
            dripping.cancel()
        assert reset.error_code == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
