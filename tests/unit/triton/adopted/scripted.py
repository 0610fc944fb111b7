"""Triton in the eyes of one that adopts it: gRPC and HTTP servers with a mode, a repository, a lock and loaded models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from control_plane.core.endpoints import CONTROL_FIELD, GRPC_CONTROL_FIELD, TritonEndpoints
from control_plane.triton.adapters.connected import UpstreamClient
from tests.unit.triton.adapters.fake_grpc_server import FakeServer, Handler
from tests.unit.triton.adapters.scripted_triton import Exchange, scripted_triton


@dataclass
class Theirs:
    """How others have started it."""

    repository: Path
    secret: str = ""
    is_http_locked: bool = True
    mode: str = "explicit"
    loaded: dict[str, str] = field(default_factory=dict)
    """Model -> its state."""
    unloaded: list[str] = field(default_factory=list)
    grpc_port: int = 0
    http_port: int = 0

    def endpoints(self, secret: str) -> TritonEndpoints:
        return TritonEndpoints("127.0.0.1", self.http_port, self.grpc_port, None, control_secret=secret)

    async def index(self, context: Any) -> bytes:
        await self._require_secret(context)
        for folder in self.repository.iterdir():
            self.loaded.setdefault(folder.name, "UNAVAILABLE")
        lines = [service_pb2.RepositoryIndexResponse.ModelIndex(name=name, state=state) for name, state in self.loaded.items()]
        return service_pb2.RepositoryIndexResponse(models=lines).SerializeToString()

    async def unload(self, message: bytes, context: Any) -> bytes:
        await self._require_secret(context)
        if self.mode != "explicit":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "explicit model load / unload is not allowed if polling is enabled")
        name = service_pb2.RepositoryModelUnloadRequest.FromString(message).model_name
        self.unloaded.append(name)
        self.loaded[name] = "UNAVAILABLE"
        return b""

    async def _require_secret(self, context: Any) -> None:
        shown = dict(context.invocation_metadata()).get(GRPC_CONTROL_FIELD, "")
        if self.secret and shown != self.secret:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"This protocol is restricted, expecting header '{GRPC_CONTROL_FIELD}'")

    async def over_http(self, exchange: Exchange) -> bytes:
        is_refused = self.is_http_locked and f"{CONTROL_FIELD}: {self.secret}".encode() not in exchange.request
        status, body = ("403 Forbidden", b"no") if is_refused else ("200 OK", b"[]")
        return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@asynccontextmanager
async def triton(theirs: Theirs) -> AsyncIterator[FakeServer]:
    """Run one that was started so."""
    server: FakeServer | None = None

    async def handle(message: bytes, context: Any) -> bytes:
        assert server is not None
        method = server.arrivals.get_nowait()[0].rpartition("/")[2]
        return await (theirs.index(context) if method == "RepositoryIndex" else theirs.unload(message, context))

    handler: Handler = handle
    server = FakeServer(handler)
    async with scripted_triton(theirs.over_http) as http:
        await server.start()
        theirs.grpc_port, theirs.http_port = server.port, http.port
        try:
            yield server
        finally:
            await server.stop()
            await asyncio.sleep(0)


@asynccontextmanager
async def client(endpoints: TritonEndpoints) -> AsyncIterator[UpstreamClient]:
    found = UpstreamClient(endpoints, max_connections=1)
    try:
        yield found
    finally:
        await found.close()
