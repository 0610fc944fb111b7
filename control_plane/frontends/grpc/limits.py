"""Limits of the gRPC frontend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from control_plane.frontends.common.connection_limits import Network


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """Limits that a gRPC server sets for each connection: sizes, counts and time-outs."""

    max_message_bytes: int
    max_connections: int
    max_header_bytes: int = 16 * 2**10
    header_timeout_s: float = 10.0
    """Seconds for the connection preface."""
    body_timeout_s: float = 60.0
    """Seconds without progress: of an incomplete message, or of an answer for which the client opens no window."""
    idle_timeout_s: float = 300.0
    """Seconds that a connection may be without calls; 0 means no limit."""
    source_share: float = 1.0
    trusted_proxies: Sequence[Network] = ()
    """Both as in `HttpLimits`."""
