"""The gRPC frontend on a real socket, before a fake Triton; and several kinds of clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from control_plane.core.principal import Principal
from control_plane.frontends.grpc.handler import GrpcApplication, GrpcHandler, VerbatimAnswers
from control_plane.frontends.grpc.limits import GrpcLimits
from control_plane.frontends.grpc.server import GrpcServer
from control_plane.frontends.kserve.grpc import SERVICE, V2Grpc
from control_plane.host.network.exposure import AllowedHosts
from control_plane.host.network.listening import bind_tcp
from control_plane.protocols.grpc import PREFIX_BYTES, GrpcHead
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.triton.ports import GrpcCall
from tests.fakes import FakeGrpc, FakeUpstream
from tests.h2_peer import H2Peer
from tests.wire.services import Services

INFER = SERVICE + "ModelInfer"
STREAM = SERVICE + "ModelStreamInfer"
MAX_MESSAGE_BYTES = 1 << 20
LIMITS = GrpcLimits(max_message_bytes=MAX_MESSAGE_BYTES, max_connections=100)
BUDGET_BYTES = 1 << 30


def infer_message(*, model: str = "m", id_: str = "", datatype: str = "FP32", content: bytes = b"\0\0\0\0", padding: int = 0) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model, id=id_ or "x" * padding, raw_input_contents=[content])
    request.inputs.add(name="X", datatype=datatype, shape=[1])
    message: bytes = request.SerializeToString()
    return message


def message_of(call: GrpcCall) -> bytes:
    return bytes(call.frame[PREFIX_BYTES:])


@dataclass(kw_only=True)
class Bench(Services):
    """The gRPC frontend on a port of its own, and what it has behind it."""

    server: GrpcServer = field(init=False)
    port: int = field(init=False)
    channel: grpc.aio.Channel = field(init=False)
    peers: list[H2Peer] = field(init=False, default_factory=list)

    def call(self, method: str = INFER, message: bytes = b"", **options: Any) -> grpc.aio.UnaryUnaryCall:
        return self.channel.unary_unary(method)(message, **options)

    async def failure(self, method: str = INFER, message: bytes = b"", **options: Any) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(method, message, **options)
        return caught.value

    def stream(self, **options: Any) -> grpc.aio.StreamStreamCall:
        return self.channel.stream_stream(STREAM)(**options)

    async def connect(self) -> H2Peer:
        """A raw connection on which nothing has been sent."""
        peer = H2Peer(*await asyncio.open_connection("127.0.0.1", self.port), is_client=True)
        self.peers.append(peer)
        return peer

    async def peer(self, *, settings: dict[int, int] | None = None) -> H2Peer:
        """A connection by the `h2` library."""
        peer = await self.connect()
        await peer.start(settings=settings)
        return peer

    @property
    def open_streams(self) -> int:
        return sum(len(connection._state.streams) for connection in self.server._connections)


@dataclass
class _FromElsewhere:
    """The application as if all callers were on other machines."""

    application: GrpcApplication

    def handler_for(self, head: GrpcHead, *, peer: str, peer_is_local: bool) -> tuple[GrpcHandler, Principal]:
        return self.application.handler_for(head, peer="203.0.113.9", peer_is_local=False)

    def verbatim_answers(self, *, max_header_bytes: int) -> VerbatimAnswers:
        return self.application.verbatim_answers(max_header_bytes=max_header_bytes)


@asynccontextmanager
async def frontend(
    grpc_: FakeGrpc | None = None,
    *,
    limits: GrpcLimits = LIMITS,
    budget_bytes: int = BUDGET_BYTES,
    peers_are_local: bool = True,
    options: tuple[tuple[str, int], ...] = (),
    body_limits: BodyLimits | None = None,
    hosts: AllowedHosts | None = None,
    **services: Any,
) -> AsyncIterator[Bench]:
    """Listen on a port of its own, with `m` as a decoupled model; `services` are fields of `Services`."""
    own = Bench(
        upstream=FakeUpstream(grpc=grpc_ or FakeGrpc()),
        max_buffered_bytes=budget_bytes,
        body_limits=body_limits or BodyLimits(max_body_bytes=limits.max_message_bytes),
        **services,
    )
    own.upstream.control.decoupled["m"] = True
    application = V2Grpc(own.kserve)
    own.server = GrpcServer(application if peers_are_local else _FromElsewhere(application), limits, own.budget, hosts=hosts)
    bound = bind_tcp("127.0.0.1", 0, setting="--grpc-port")
    own.port = bound.getsockname()[1]
    own.channel = grpc.aio.insecure_channel(f"127.0.0.1:{own.port}", options=(("grpc.max_receive_message_length", -1), *options))
    async with own.running() as tasks:
        await own.server.listen(tasks, bound)
        try:
            yield own
        finally:
            await own.channel.close()
            for peer in own.peers:
                await peer.close()
            await own.server.drain(0)
    assert not own.server._connections


async def until(condition: Any) -> None:
    """Poll for a condition without an event; the test's time limit ends it."""
    while not condition():
        await asyncio.sleep(0.001)
