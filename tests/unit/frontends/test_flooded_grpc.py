"""The work that one gRPC connection can cause in a turn of the event loop is bounded."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from control_plane.frontends.grpc.connection import GrpcConnection
from control_plane.protocols.grpc import frame_message
from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2 import huffman as http2_huffman
from control_plane.protocols.http2.frames import Code
from control_plane.protocols.http2.headers import NO_TABLE, encode_fields
from tests.unit.frontends.flooded_ends import (
    KEYED,
    OPENING,
    call,
    frames_of,
    frontends,
    goaways,
    unread_bytes,
)
from tests.unit.protocols.http2.http2_ends import frame


class TestGrpc:
    async def test_calls_that_came_together_are_handled_one_in_a_turn_while_others_keep_up(self) -> None:
        async with frontends() as it:
            connection, _ = it.connect("grpc")
            other, _ = it.connect("grpc")
            connection.data_received(OPENING + b"".join([call(stream_id) for stream_id in range(1, 201, 2)]))
            while it.behind.handled < 3:  # those that are handled on arrival
                it.grpc.reads.kept_up = cast("GrpcConnection", other)
                await asyncio.sleep(0)
            while it.behind.handled < 100:
                it.grpc.reads.kept_up, before = cast("GrpcConnection", other), it.behind.handled
                await asyncio.sleep(0)
                assert it.behind.handled - before <= 1

    async def test_the_table_of_huffmans_code_is_there_before_anybody_is_served(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http2_huffman, "_ROWS", [])

        async with frontends():
            assert len(http2_huffman._ROWS) == 256

    @pytest.mark.parametrize(
        "small",
        [
            pytest.param(frame(h2.PING, 0, 0, bytes(8)), id="pings"),
            pytest.param(frame(0xF0, 0, 0, b""), id="unknown frames"),
            pytest.param(frame(h2.GOAWAY, 0, 0, bytes(8)), id="farewells"),
        ],
    )
    async def test_frames_that_came_together_are_handled_a_few_in_a_turn_and_the_socket_is_not_read(self, small: bytes) -> None:
        async with frontends() as it:
            connection, transport = it.connect("grpc")
            connection.data_received(OPENING + small * 1_000)
            assert transport.is_paused
            assert unread_bytes(connection) >= 994 * len(small)
            while not transport.has_eof:
                before = unread_bytes(connection)
                await asyncio.sleep(0)
                assert transport.has_eof or before - unread_bytes(connection) <= 20 * len(small)
            assert goaways(transport) == [Code.ENHANCE_YOUR_CALM]

    async def test_many_calls_that_came_together_are_all_answered(self) -> None:
        async with frontends() as it:
            connection, transport = it.connect("grpc")
            connection.data_received(OPENING + b"".join(call(2 * number + 1) for number in range(300)))
            while sum(1 for kind, flags, *_ in frames_of(transport) if kind == h2.HEADERS and flags & h2.END_STREAM) < 300:
                before = it.behind.handled
                await asyncio.sleep(0)
                assert it.behind.handled - before <= 12
            assert not transport.is_paused

    async def test_nothing_is_read_for_a_client_that_does_not_read(self) -> None:
        async with frontends() as it:
            connection, transport = it.connect("grpc")
            connection.data_received(OPENING + frame(h2.PING, 0, 0, bytes(8)) * 400)
            connection.pause_writing()
            await asyncio.sleep(0)
            unread = unread_bytes(connection)
            for _ in range(50):
                await asyncio.sleep(0)
            assert unread_bytes(connection) == unread > 0
            connection.resume_writing()
            while unread_bytes(connection):
                await asyncio.sleep(0)
            assert not transport.is_paused
            assert [kind for kind, flags, *_ in frames_of(transport)].count(h2.PING) == 400

    @pytest.mark.virtual_time
    async def test_one_that_broke_the_protocol_is_told_why_and_not_read_any_more(self) -> None:
        async with frontends() as it:
            connection, transport = it.connect("grpc")
            connection.data_received(OPENING + frame(h2.DATA, 0, 1, b"x"))
            assert goaways(transport) == [Code.PROTOCOL_ERROR]
            assert (transport.has_eof, transport.is_paused, transport.is_closed) == (True, True, False)
            connection.data_received(bytes(100))
            await asyncio.sleep(2)
            assert transport.is_closed

    async def test_a_drain_does_not_wait_for_one(self) -> None:
        async with frontends() as it:
            connection, transport = it.connect("grpc")
            connection.data_received(OPENING + frame(h2.DATA, 0, 1, b"x"))
            connection.leave()
            assert transport.is_closed

    @pytest.mark.parametrize("ends", [pytest.param(b"", id="and an end"), pytest.param(b"\0\0", id="and one cut off")])
    async def test_messages_that_came_together_on_a_stream_are_handled_one_in_a_turn(self, ends: bytes) -> None:
        head = NO_TABLE + encode_fields((*KEYED[:2], (b":path", b"/inference.GRPCInferenceService/ModelStreamInfer"), *KEYED[3:]))

        async with frontends() as it:
            connection, transport = it.connect("grpc")
            body = frame(h2.DATA, h2.END_STREAM, 1, frame_message(b"") * 2_000 + ends)
            connection.data_received(OPENING + frame(h2.HEADERS, h2.END_HEADERS, 1, head) + body)
            while connection._state.streams:
                before = it.behind.handled
                await asyncio.sleep(0)
                assert it.behind.handled - before <= 1
            assert it.behind.handled == (2_000 if not ends else 1_984)  # those cut out together with the end that is none are lost
            (status,) = [payload for kind, flags, _, payload in frames_of(transport) if kind == h2.HEADERS and flags & h2.END_STREAM]
            assert (b"grpc-status\x010" in bytes(status)) is (ends == b"")
