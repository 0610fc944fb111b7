"""The gRPC frontend on a real socket, with the real service and a fake Triton; and several kinds of
clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from control_plane.core.principal import Principal
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.status import client_status_of
from control_plane.frontends.grpc.call import GrpcHandler
from control_plane.frontends.grpc.connection import GrpcApplication, GrpcLimits
from control_plane.frontends.grpc.server import GrpcServer
from control_plane.frontends.kserve.grpc import SERVICE, V2Grpc
from control_plane.host.exposure import AllowedHosts
from control_plane.host.listening import bind_tcp
from control_plane.inference.cached_inference import CachedInference
from control_plane.inference.governance import Governance
from control_plane.inference.inference import InferenceService
from control_plane.protocols.grpc import PREFIX_BYTES, GrpcHead
from control_plane.protocols.header_forwarding import NO_FORWARDING, HeaderForwarding
from control_plane.protocols.http2.stream import WholeAnswer, WholeCall
from control_plane.protocols.kserve.body_limits import BodyLimits
from control_plane.triton.ports import GrpcCall
from control_plane.triton.servers import Servers
from tests.fakes import FakeGrpc, FakeModels, FakeRecorder, FakeUpstream
from tests.fakes.governance import governance
from tests.h2_peer import H2Peer

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


@dataclass
class Bench:
    upstream: FakeUpstream
    servers: Servers
    recorder: FakeRecorder
    inference: InferenceService
    models: FakeModels
    budget: BodyBudget
    server: GrpcServer
    port: int
    channel: grpc.aio.Channel
    peers: list[H2Peer] = field(default_factory=list)

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

    def verbatim_answers(self, *, max_header_bytes: int) -> Callable[[WholeCall], WholeAnswer | None]:
        return self.application.verbatim_answers(max_header_bytes=max_header_bytes)


@asynccontextmanager
async def frontend(
    grpc_: FakeGrpc | None = None,
    *,
    limits: GrpcLimits = LIMITS,
    budget_bytes: int = BUDGET_BYTES,
    allow_shared_memory: bool = False,
    models: FakeModels | None = None,
    peers_are_local: bool = True,
    options: tuple[tuple[str, int], ...] = (),
    governed: Governance | None = None,
    cached: CachedInference | None = None,
    body_limits: BodyLimits | None = None,
    forwarding: HeaderForwarding = NO_FORWARDING,
    hosts: AllowedHosts | None = None,
) -> AsyncIterator[Bench]:
    """Listening on a port of its own, with `m` as a decoupled model.

    At the end nothing may be left: no stream, no call in flight, no byte of the budget.
    """
    upstream, servers, recorder = FakeUpstream(grpc=grpc_ or FakeGrpc()), Servers(), FakeRecorder()
    upstream.control.decoupled["m"] = True
    servers.up(upstream)
    governed = governed or governance()
    inference = InferenceService(
        servers=servers,
        recorder=recorder,
        governance=governed,
        cached=cached,
        client_status_of=client_status_of,
        default_timeout_s=30.0,
        allow_shared_memory=allow_shared_memory,
    )
    models = models or FakeModels()
    budget = BodyBudget(budget_bytes)
    application = V2Grpc(
        inference=inference,
        access=governed.access,
        servers=servers,
        models=models,
        budget=budget,
        forwarding=forwarding,
        limits=body_limits or BodyLimits(max_body_bytes=limits.max_message_bytes),
        read_timeout_s=20.0,
        allow_shared_memory=allow_shared_memory,
    )
    server = GrpcServer(application if peers_are_local else _FromElsewhere(application), limits, budget, hosts=hosts)
    bound = bind_tcp("127.0.0.1", 0, setting="--grpc-port")
    port = bound.getsockname()[1]
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.max_receive_message_length", -1), *options))
    async with asyncio.TaskGroup() as tasks:
        if cached is not None:
            cached.begin(tasks)
        await server.listen(tasks, bound)
        bench = Bench(upstream, servers, recorder, inference, models, budget, server, port, channel)
        try:
            yield bench
        finally:
            await channel.close()
            for peer in bench.peers:
                await peer.close()
            await server.drain(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (budget.held_bytes, inference.in_flight, len(server._connections)) == (0, 0, 0)


async def until(condition: Any) -> None:
    """Poll for a condition without an event; the test's time limit ends it."""
    while not condition():
        await asyncio.sleep(0.001)
