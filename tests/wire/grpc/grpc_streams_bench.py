"""ModelStreamInfer calls, and the ends that a frontend gives them."""

from __future__ import annotations

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from control_plane.protocols.grpc import frame_message
from tests.fakes import FakeGrpcStream
from tests.h2_peer import H2Peer
from tests.wire.grpc_frontend import STREAM, Bench, infer_message


def request(model: str = "m", id_: str = "1") -> bytes:
    return infer_message(model=model, id_=id_)


def answer(text: str) -> bytes:
    """A response of Triton's on a stream, told from others by its text."""
    serialised: bytes = service_pb2.ModelStreamInferResponse(error_message=text).SerializeToString()
    return serialised


async def has_ended(call: grpc.aio.StreamStreamCall) -> bool:
    """Wait for the next event; False if it is an answer."""
    try:
        return await call.read() is grpc.aio.EOF
    except grpc.aio.AioRpcError:
        return True


async def begun(it: Bench, message: bytes | None = None) -> tuple[grpc.aio.StreamStreamCall, FakeGrpcStream]:
    """A call whose first message has reached Triton."""
    call = it.stream()
    await call.write(message or request())
    stream = await it.upstream.grpc.streams.get()
    assert await stream.sent.get() == (message or request())
    return call, stream


async def opened(it: Bench, *headers: tuple[str, str], settings: dict[int, int] | None = None) -> H2Peer:
    """A call on stream 1 of an `h2` connection."""
    peer = await it.peer(settings=settings)
    head = [(":method", "POST"), (":scheme", "http"), (":path", STREAM), (":authority", "a"), ("te", "trailers")]
    peer.state.send_headers(1, [*head, ("content-type", "application/grpc"), *headers])
    await peer.flush()
    return peer


async def send(peer: H2Peer, message: bytes) -> None:
    peer.state.send_data(1, frame_message(message))
    await peer.flush()
