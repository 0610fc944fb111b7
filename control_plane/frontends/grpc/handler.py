"""Handlers of gRPC methods: what an application gives a call (`frontends/grpc/call`) to be answered by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from control_plane.core.errors import ControlPlaneError
from control_plane.core.principal import Principal
from control_plane.frontends.grpc.message_stream import MessageStream
from control_plane.protocols.grpc import GrpcAnswer, GrpcHead
from control_plane.triton.ports import GrpcCall


@dataclass(frozen=True, slots=True)
class GrpcHandler:
    """Handler of one gRPC method; either `unary` or `stream` is set."""

    unary: Callable[[GrpcCall], Awaitable[GrpcAnswer]] | None = None
    admit: Callable[[Principal], None] | None = None
    """Called before a large message is received. Raises the ControlPlaneError that the call would be refused
    with."""
    stream: Callable[[GrpcHead, MessageStream, Principal], Awaitable[GrpcAnswer]] | None = None
    """Runs a streaming call; returns the status that ends it."""
    late: Callable[[Principal, float], ControlPlaneError] | None = None
    """Notes a call that was not read in time, with the seconds until its deadline, and returns the error for its caller. None:
    such calls are answered as others, which cost little."""
    max_bytes: int | None = None
    """Largest message of the method; None: as large as any body."""
