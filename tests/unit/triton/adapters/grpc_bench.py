"""The gRPC client, before grpc's own server or one that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import h2.errors
import h2.events
import h2.settings

from control_plane.core.endpoints import TcpAddress
from control_plane.protocols.grpc import PREFIX_BYTES, GrpcHead, frame_message
from control_plane.protocols.header_forwarding import HeaderForwarding
from control_plane.triton.adapters.connecting import MAX_ANSWER_BYTES
from control_plane.triton.adapters.grpc.calls import TritonStream
from control_plane.triton.adapters.grpc.client import GrpcClient
from control_plane.triton.ports import GrpcCall
from tests.aio import settle
from tests.h2_peer import H2Peer
from tests.unit.triton.adapters.fake_grpc_server import FakeServer, Handler, StreamHandler, echo, serving

CONTENT_TYPE = (b"content-type", b"application/grpc")
HEAD = GrpcHead("/any.Service/Method", (CONTENT_TYPE, (b"x-trace", b"7"), (b"x-bin", b"AP8=")))
STREAM_HEAD = GrpcHead("/any.Service/Stream", (CONTENT_TYPE,))
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


def call(message: bytes = b"message", *, head: GrpcHead = HEAD) -> GrpcCall:
    return GrpcCall(head, frame_message(message))


@asynccontextmanager
async def triton(handle: Handler = echo, stream: StreamHandler | None = None) -> AsyncIterator[tuple[GrpcClient, FakeServer]]:
    async with serving(handle, stream) as fake:
        client = GrpcClient(TcpAddress("127.0.0.1", fake.port), forwarding=HeaderForwarding.of("^x-"))
        try:
            yield client, fake
        finally:
            await client.close()


Serve = Callable[[H2Peer], Awaitable[None]]
GRPC_ANSWER = [(":status", "200"), ("content-type", "application/grpc")]


@asynccontextmanager
async def scripted(serve: Serve, *, max_answer_bytes: int = MAX_ANSWER_BYTES) -> AsyncIterator[tuple[GrpcClient, list[H2Peer]]]:
    """Run a server that calls `serve` for each connection; it ends with the context."""
    peers: list[H2Peer] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(H2Peer(reader, writer, is_client=False))
        try:
            await serve(peers[-1])
        except ConnectionError:
            writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    client = GrpcClient(TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1]), max_answer_bytes=max_answer_bytes)
    try:
        yield client, peers
    finally:
        await client.close()
        server.close()
        for peer in peers:
            await peer.close()
        await settle()


async def greeting(peer: H2Peer) -> None:
    await peer.start()


async def answering(peer: H2Peer) -> None:
    await peer.start()
    while True:
        await answer_next(peer)


async def answer_next(peer: H2Peer) -> None:
    """Answer the next complete call with a message of one byte."""
    ended = await peer.wait_for(h2.events.StreamEnded)
    peer.state.send_headers(ended.stream_id, GRPC_ANSWER)
    peer.state.send_data(ended.stream_id, frame_message(b"1"))
    peer.state.send_headers(ended.stream_id, [("grpc-status", "0")], end_stream=True)
    await peer.flush()


async def received(stream: TritonStream) -> bytes:
    frame = await stream.receive()
    assert frame is not None
    return bytes(frame[PREFIX_BYTES:])
