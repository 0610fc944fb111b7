"""gRPC server of the data port: HTTP/2 on asyncio transports, like `frontends/http/server`.

It is not built on grpc.aio, whose hop costs about half a millisecond, several times a proxy's (perf/README.md
has the comparison).
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from control_plane.concurrency.turn_writes import TurnWrites
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.connection_server import ConnectionServer
from control_plane.frontends.common.read_scheduler import ReadScheduler
from control_plane.frontends.grpc.connection import GrpcConnection
from control_plane.frontends.grpc.handler import GrpcApplication
from control_plane.frontends.grpc.limits import GrpcLimits
from control_plane.host.network.exposure import AllowedHosts
from control_plane.protocols.http2 import huffman as http2_huffman
from control_plane.protocols.http2.headers import KnownBlocks


class GrpcServer(ConnectionServer[GrpcConnection]):
    """gRPC server: accepts connections and passes their calls to `application`."""

    def __init__(
        self,
        application: GrpcApplication,
        limits: GrpcLimits,
        budget: BodyBudget,
        *,
        hosts: AllowedHosts | None = None,
        reads: ReadScheduler | None = None,
    ) -> None:
        """`hosts` are the host names that clients over TCP may call (`:authority`); None: any. `reads` as in
        `ConnectionServer`."""
        super().__init__(limits, reads)
        http2_huffman.prepare()  # 50 ms that the first client must not wait for
        self.writes = TurnWrites()
        self.application = application
        self.limits = limits
        self.hosts = hosts
        self.budget = budget
        self.known_blocks = KnownBlocks()

    async def listen(self, tasks: asyncio.TaskGroup, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a bound socket; may be called for several.

        The connections' tasks belong to `tasks`.
        """
        await self.accept_on(listening, lambda: GrpcConnection(self, tasks), tls, tasks)
