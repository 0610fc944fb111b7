"""gRPC client of Triton, against servers on the `h2` library, for behaviour that grpc's own server cannot be
made to show.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import grpc
import h2.errors
import h2.events
import h2.settings
import pytest

from control_plane.core.endpoints import TcpAddress
from control_plane.protocols.grpc import GrpcHead, answer_of, frame_message
from control_plane.protocols.http2 import frames as frames
from control_plane.protocols.http2.headers import NO_TABLE, encode_fields
from control_plane.triton.adapters.grpc.client import GrpcClient
from tests.h2_peer import H2Peer
from tests.unit.triton.adapters.grpc_bench import GRPC_ANSWER, answer_next, call, greeting, scripted

CONTENT_TYPE = (b"content-type", b"application/grpc")
STREAM_HEAD = GrpcHead("/any.Service/Stream", (CONTENT_TYPE,))
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


class TestAnotherServer:
    """Server that uses HTTP/2 in ways for which grpc's server has no switch."""

    async def test_streams_beyond_its_limit_go_by_more_connections_which_are_used_again(self) -> None:
        async def serve(peer: H2Peer) -> None:
            await peer.start(settings={h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 2})
            while True:
                await answer_next(peer)

        async with scripted(serve) as (client, peers):
            for _ in range(5):
                await client.unary(call(), timeout_s=10)
                answers = await asyncio.gather(*(client.unary(call(), timeout_s=10) for _ in range(4)))
                assert [answer.code for answer in answers] == [0] * 4
            assert 1 <= len(peers) <= 3

    async def test_one_that_leaves_finishes_what_it_has_and_gets_nothing_new(self) -> None:
        async with scripted(greeting) as (client, peers), asyncio.TaskGroup() as tasks:
            first = tasks.create_task(client.unary(call(), timeout_s=10))
            while not peers:
                await asyncio.sleep(0.001)
            await peers[0].wait_for(h2.events.StreamEnded)
            peers[0].state.close_connection(last_stream_id=1)
            await peers[0].send_raw(peers[0].state.data_to_send())
            await asyncio.sleep(0.05)
            second = tasks.create_task(client.unary(call(), timeout_s=10))
            while len(peers) < 2:
                await asyncio.sleep(0.001)
            await answer_next(peers[1])
            assert (await second).message == b"1"
            await peers[0].send_raw(_answer_frames(1))
            assert (await first).message == b"1"
            assert await peers[0].reader.read() is not None  # it is closed when its last call has ended

    @pytest.mark.parametrize("code", [h2.errors.ErrorCodes.REFUSED_STREAM, h2.errors.ErrorCodes.INTERNAL_ERROR])
    async def test_a_call_that_is_reset_within_its_answer_is_unavailable_and_nothing_else(self, code: h2.errors.ErrorCodes) -> None:
        async def serve(peer: H2Peer) -> None:
            await peer.start()
            ended = await peer.wait_for(h2.events.StreamEnded)
            peer.state.send_headers(ended.stream_id, GRPC_ANSWER)
            peer.state.send_data(ended.stream_id, b"\0\0\0\0\x09part")
            peer.state.reset_stream(ended.stream_id, code)
            await peer.flush()
            await answer_next(peer)

        async with scripted(serve) as (client, _):
            answer = await client.unary(call(), timeout_s=10)
            assert (answer.code, answer.headers, answer.body) == (UNAVAILABLE, (), ())
            assert answer.details == f"Triton closed the connection before it answered (RST_STREAM {code.name})"
            assert (await client.unary(call(), timeout_s=10)).message == b"1"

    @pytest.mark.parametrize(
        ("frame", "reason"),
        [
            pytest.param(
                frames.goaway(0, frames.Code.ENHANCE_YOUR_CALM, "too_many_pings"), " (GOAWAY ENHANCE_YOUR_CALM too_many_pings)", id="said"
            ),
            pytest.param(frames.goaway(0, frames.Code.NO_ERROR), " (GOAWAY NO_ERROR)", id="without words"),
            pytest.param(frames.goaway(0, 99, "\u00e9" * 100), " (GOAWAY 99 " + "\\xc3\\xa9" * 50 + ")", id="of no sense"),  # type: ignore[arg-type]
            pytest.param(frames.goaway(1, frames.Code.NO_ERROR, "max_age"), " (GOAWAY NO_ERROR max_age)", id="before it closed"),
            pytest.param(frames.frame_head(frames.PING, 0, 0, 3) + b"abc", " (it broke HTTP/2: a PING frame has 8 bytes)", id="broken"),
            pytest.param(b"", "", id="not said"),
        ],
    )
    async def test_why_it_broke_off_is_told(self, frame: bytes, reason: str) -> None:
        async def serve(peer: H2Peer) -> None:
            await peer.start()
            await peer.wait_for(h2.events.StreamEnded)
            await peer.send_raw(frame)
            peer.writer.close()

        async with scripted(serve) as (client, _):
            answer = await client.unary(call(), timeout_s=10)
            assert (answer.code, answer.details) == (UNAVAILABLE, f"Triton closed the connection before it answered{reason}")

    async def test_an_answer_before_the_request_is_whole_ends_the_call(self) -> None:
        async def serve(peer: H2Peer) -> None:
            peer.reads_on = False
            await peer.start(settings={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 19})
            received_ = await peer.wait_for(h2.events.DataReceived)
            peer.state.send_headers(received_.stream_id, [*GRPC_ANSWER, ("grpc-status", "8")], end_stream=True)
            await peer.flush()
            assert (await peer.wait_for(h2.events.StreamReset)).stream_id == received_.stream_id
            peer.state.increment_flow_control_window(1 << 20)
            await peer.flush()
            await answer_next(peer)

        async with scripted(serve) as (client, peers):
            assert (await client.unary(call(bytes(1 << 20)), timeout_s=10)).code == 8
            assert (await client.unary(call(bytes((1 << 18) + 1)), timeout_s=10)).message == b"1"
            assert len(peers) == 1

    async def test_what_is_no_http2_ends_the_connection(self) -> None:
        async def serve(peer: H2Peer) -> None:
            await peer.send_raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        async with scripted(serve) as (client, _):
            assert (await client.unary(call(), timeout_s=10)).code == UNAVAILABLE
            assert not client._open

    async def test_one_that_accepts_and_says_nothing_is_given_up_at_the_deadline(self) -> None:
        async def serve(peer: H2Peer) -> None: ...

        async with scripted(serve) as (client, _):
            assert (await client.unary(call(), timeout_s=0.1)).code == DEADLINE_EXCEEDED

    @pytest.mark.parametrize(
        ("own_s", "expected"), [pytest.param(0.1, DEADLINE_EXCEEDED, id="its caller's time"), pytest.param(None, UNAVAILABLE, id="ours")]
    )
    async def test_one_that_cannot_be_connected_to_in_time(self, own_s: float | None, expected: int) -> None:
        with socket.socket() as full, ExitStack() as waiting:  # a listener whose queue is full drops what comes
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(2):
                one = waiting.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(full.getsockname())
            client = GrpcClient(TcpAddress("127.0.0.1", full.getsockname()[1]))
            answer = await client.unary(call(head=GrpcHead("/m", (CONTENT_TYPE,), own_s)), timeout_s=0.1)
            assert answer.code == expected
            await client.close()

    async def test_a_stream_whose_message_is_too_long_is_given_up(self) -> None:
        async def serve(peer: H2Peer) -> None:
            await peer.start()
            opened = await peer.wait_for(h2.events.RequestReceived)
            peer.state.send_headers(opened.stream_id, GRPC_ANSWER)
            peer.state.send_data(opened.stream_id, frame_message(bytes(11)))
            await peer.flush()
            await peer.wait_for(h2.events.StreamReset)

        async with scripted(serve, max_answer_bytes=10) as (client, _):
            it = await client.open_stream(STREAM_HEAD, timeout_s=10)
            assert await it.receive() is None
            assert answer_of(it.headers, (), it.trailers).code == grpc.StatusCode.INTERNAL.value[0]

    async def test_an_answer_that_is_too_long_is_not_kept(self) -> None:
        async def serve(peer: H2Peer) -> None:
            await peer.start()
            opened = await peer.wait_for(h2.events.RequestReceived)
            peer.state.send_headers(opened.stream_id, GRPC_ANSWER)
            peer.state.send_data(opened.stream_id, bytes(1025))
            await peer.flush()
            await peer.wait_for(h2.events.StreamReset)

        async with scripted(serve, max_answer_bytes=1024) as (client, _):
            answer = await client.unary(call(), timeout_s=10)
            assert answer.code == grpc.StatusCode.UNAVAILABLE.value[0]
            assert "more than 1024 bytes" in answer.details


def _answer_frames(stream_id: int) -> bytes:
    """Return the bytes of a complete response, for a connection that h2 considers closed."""

    def written(kind: int, flags: int, payload: bytes) -> bytes:
        return frames.frame_head(kind, flags, stream_id, len(payload)) + payload

    head = NO_TABLE + encode_fields(((b":status", b"200"), CONTENT_TYPE))
    return (
        written(frames.HEADERS, frames.END_HEADERS, head)
        + written(frames.DATA, 0, frame_message(b"1"))
        + written(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, encode_fields(((b"grpc-status", b"0"),)))
    )
