"""A Triton of one slot behind both frontends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from control_plane.core.endpoints import TcpAddress
from control_plane.inference.governance import Governance
from control_plane.triton.adapters.grpc.client import GrpcClient
from control_plane.triton.adapters.http.client import HttpClient
from tests.fakes import FakeGrpc, FakeHttp, FakeUpstream
from tests.unit.triton.adapters.fake_grpc_server import serving
from tests.unit.triton.adapters.scripted_triton import OK, Exchange, scripted_triton
from tests.wire.gateway import Gateway, gateway
from tests.wire.grpc_frontend import Bench, frontend


@dataclass
class Triton:
    """What the fake Triton does: one request after the other, each until `may_end`."""

    service_s: float = 0.0
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    computed: int = 0
    _instance: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def compute(self, frontend: str) -> None:
        self.begun.put_nowait(frontend)
        async with self._instance:
            await self.may_end.wait()
            await asyncio.sleep(self.service_s)
            self.computed += 1

    async def http(self, exchange: Exchange) -> bytes:
        await self.compute("http")
        return OK

    async def grpc(self, message: bytes, context: Any) -> bytes:
        await self.compute("grpc")
        return b""


@asynccontextmanager
async def both_frontends(triton: Triton, rights: Governance) -> AsyncIterator[tuple[Gateway, Bench]]:
    """Both frontends, which share the model's slots."""
    async with scripted_triton(triton.http) as http_server, serving(triton.grpc) as grpc_server:
        http = HttpClient(TcpAddress("127.0.0.1", http_server.port), max_connections=100)
        grpc_client = GrpcClient(TcpAddress("127.0.0.1", grpc_server.port))
        async with (
            gateway(FakeUpstream(http=cast("FakeHttp", http)), governed=rights) as over_http,
            frontend(cast("FakeGrpc", grpc_client), governed=rights) as over_grpc,
        ):
            yield over_http, over_grpc
        await http.close()
        await grpc_client.close()
