"""Limits of the gRPC frontend."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.frontends.common.connection_limits import ConnectionLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits(ConnectionLimits):
    """Limits that a gRPC server sets for each connection: sizes, counts and time-outs."""

    max_message_bytes: int
