"""Connection to a Triton's gRPC port that carries nothing: while it is open, the Triton is the same process.

A Triton that ends, however it does, closes it, and the one that comes next does not have it. So no restart goes
unnoticed, however fast it is, and whatever this process missed meanwhile.
"""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from control_plane.core.endpoints import Address, TcpAddress
from control_plane.protocols.http2.connection import Http2Connection
from control_plane.protocols.http2.frames import Http2Error
from control_plane.protocols.http2.headers import KnownBlocks
from control_plane.protocols.http2.limits import Http2Limits
from control_plane.protocols.http2.output import write_output
from control_plane.triton.adapters.connecting import open_connection

_FRAMES_AT_ONCE = 100
_KEEP_ALIVE = {socket.TCP_KEEPIDLE: 2, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 4}
"""The kernel itself notices within ten seconds that the other machine is gone, or has been started anew. A
frozen Triton's kernel goes on answering."""


class HeldConnection(asyncio.Protocol):
    """Idle HTTP/2 connection, kept open until Triton closes it, or says that it is about to."""

    def __init__(self) -> None:
        self._state = Http2Connection(KnownBlocks(), Http2Limits())
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()

    @classmethod
    async def open(cls, address: Address) -> HeldConnection:
        """Connect; the caller sets the deadline. Raises OSError: there is nobody."""
        connection = await open_connection(cls, address)
        own = None if connection._transport is None else connection._transport.get_extra_info("socket")
        if own is not None and isinstance(address, TcpAddress):
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEP_ALIVE.items():
                own.setsockopt(socket.IPPROTO_TCP, option, value)
        return connection

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    async def lost(self) -> None:
        """Wait until it is closed, by either side."""
        await self._lost.wait()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._lost.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._state.start()
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            has_more = self._state.receive(data, _FRAMES_AT_ONCE)
        except Http2Error:
            self.close()
            return
        self._flush()
        # One that drains is let go at once: an open connection holds up Triton's exit.
        if has_more or self._state.peer_is_draining:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._state.end()
        self._lost.set()

    def _flush(self) -> None:
        if self._transport is not None:
            write_output(self._transport, self._state.output)
        self._state.output.clear()
