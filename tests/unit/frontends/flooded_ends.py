"""Clients that flood a frontend without sockets, and one that is served beside them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from control_plane.frontends.grpc.connection import GrpcConnection
from control_plane.frontends.http.connection import HttpConnection
from control_plane.protocols.grpc import frame_message
from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.headers import NO_TABLE, encode_fields
from perf.floods.flood import Flood
from tests.unit.frontends.frontend_ends import Frontends, Transport
from tests.unit.protocols.http2.http2_ends import frame

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n"
CHUNKED = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
KEYED = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"a"),
    (b"content-type", b"application/grpc"),
    (b"x-api-key", b"key"),
)
OPENING = h2.PREFACE + h2.settings_frame({}) + h2.SETTINGS_ACK
READ_BYTES = 256_000
"""The number of bytes that uvloop reads at a time."""


@asynccontextmanager
async def frontends() -> AsyncIterator[Frontends]:
    async with asyncio.TaskGroup() as tasks:
        it = Frontends(tasks)
        yield it
        for server in (it.http, it.grpc):
            for connection in tuple(server._connections):
                connection.connection_lost(None)


def call(stream_id: int, message: bytes = b"x") -> bytes:
    block, body = NO_TABLE + encode_fields(KEYED), frame_message(message)
    head = frame(h2.HEADERS, h2.END_HEADERS, stream_id, block)
    return head + frame(h2.DATA, h2.END_STREAM, stream_id, body)


def frames_of(transport: Transport) -> list[h2.Frame]:
    return h2.FrameReader(1 << 24).feed(bytes(transport.written))


def goaways(transport: Transport) -> list[int]:
    return [int.from_bytes(payload[4:8], "big") for kind, _, _, payload in frames_of(transport) if kind == h2.GOAWAY]


def unread_bytes(connection: HttpConnection | GrpcConnection) -> int:
    if isinstance(connection, HttpConnection):
        return connection._reader.unread_bytes
    frames = connection._state._receiver._frames
    return len(frames._data) - frames._at


class Client:
    """Client that sends one request at a time, and counts the turns of the loop until each answer."""

    def __init__(self, it: Frontends, frontend: str) -> None:
        self._connection, self._transport = it.connect(frontend)
        self._frontend = frontend
        self._stream_id = -1
        self._answers = 0
        if frontend == "grpc":
            self._connection.data_received(OPENING)

    async def ask(self) -> int:
        self._stream_id += 2
        self._connection.data_received(LIVE if self._frontend == "http" else call(self._stream_id))
        turns = 0
        while self._count() == self._answers:
            await asyncio.sleep(0)
            turns += 1
            assert turns < 1_000
        self._answers = self._count()
        return turns

    def _count(self) -> int:
        if self._frontend == "http":
            return self._transport.written.count(b"HTTP/1.1 200 ")
        return sum(1 for kind, flags, *_ in frames_of(self._transport) if kind == h2.HEADERS and flags & h2.END_STREAM)


class Attacker:
    """Client that floods as fast as its data is read, in pieces as large as the loop's reads; reconnects when
    refused."""

    def __init__(self, it: Frontends, flood: Flood) -> None:
        self._it, self._flood = it, flood
        self._connect()

    def send(self) -> None:
        if self.transport.is_closed or self.transport.has_eof:
            self._connect()
        elif not self.transport.is_paused:
            for piece in itertools.islice(self._pieces, 1 if self._flood.pause_s else 100):
                self._pending += piece
                if len(self._pending) >= READ_BYTES:
                    break
            data, self._pending = self._pending[:READ_BYTES], self._pending[READ_BYTES:]
            if data:
                reader = cast("asyncio.Protocol", self.transport.protocol or self.connection)
                reader.data_received(bytes(data))

    def _connect(self) -> None:
        self.connection, self.transport = self._it.connect(self._flood.protocol)
        self._pieces = self._flood.pieces(b"key" if self._flood.has_key else b"")
        self._pending = bytearray()
        if not self._flood.reads:
            self.connection.pause_writing()
