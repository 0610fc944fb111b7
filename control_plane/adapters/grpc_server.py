"""Runs a grpc.aio server for a generic handler."""

from __future__ import annotations

import grpc
import grpc.aio

from control_plane.domain.endpoints import authority
from control_plane.domain.errors import StartupError


class GrpcServer:
    """The gRPC data port; bound at once, serving from `start` on."""

    def __init__(self, handler: grpc.GenericRpcHandler, *, host: str, port: int, max_message_bytes: int) -> None:
        self._server = grpc.aio.server(
            handlers=(handler,),
            options=(
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # two servers on one port would each get half of the calls, silently
            ),
        )
        try:
            self.port = self._server.add_insecure_port(authority(host, port))
        except RuntimeError as exc:
            raise StartupError(
                f"port {port} on {host} is taken; end what listens there or choose another with --grpc-port (0 picks a free one)"
            ) from exc
        self.address = authority(host, self.port)

    async def start(self) -> None:
        await self._server.start()

    async def drain(self, timeout_s: float) -> None:
        """Accept no more and let calls in flight finish for `timeout_s` at most."""
        await self._server.stop(timeout_s)
