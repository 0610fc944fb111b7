"""Connections to a node's port as a gateway, or an attacker, makes them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from control_plane.core.held_memory import HeldMemory
from control_plane.host.network.listening import bind_tcp, port_of
from control_plane.node.adapters.connector import TcpNodeConnector
from control_plane.node.adapters.frames import FrameLink
from control_plane.node.adapters.server import NodeServer
from control_plane.node.domain.messages import (
    LENGTH_BYTES,
    Complete,
    LookMemory,
    Memory,
)
from tests.unit.node.bench import Bench

SECRET = b"a secret of tests that is long enough"


@dataclass
class Port:
    """A node's port."""

    number: int
    bench: Bench

    def connector(self, secret: bytes | None = SECRET, tls: ssl.SSLContext | None = None) -> TcpNodeConnector:
        return TcpNodeConnector("127.0.0.1", self.number, fleet="fleet", gateway="gateway", secret=secret, tls=tls)

    async def raw(self, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.number, local_addr=(source, 0))

    async def works(self, tls: ssl.SSLContext | None = None, secret: bytes | None = SECRET) -> FrameLink:
        """Connect as a gateway, hear everything, and make a call."""
        link = await self.connector(secret, tls).connect(timeout_s=10.0)
        while not isinstance(await link.receive(), Complete):
            pass
        link.send(LookMemory(1))
        assert await link.receive() == Memory(1, HeldMemory(1000, 50))
        return link


@asynccontextmanager
async def listening(secret: bytes | None = SECRET, tls: ssl.SSLContext | None = None) -> AsyncIterator[Port]:
    bound = bind_tcp("127.0.0.1", 0, setting="--node-port")
    bench = Bench()
    async with bench.running():
        serving = asyncio.get_running_loop().create_task(NodeServer(bench.service, secret=secret, tls=tls).run(bound))
        try:
            while not bound.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                await asyncio.sleep(0.01)
            yield Port(port_of(bound), bench)
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            bound.close()


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES) + body
