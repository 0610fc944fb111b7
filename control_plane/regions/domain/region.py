"""A region as the operator lists it: its name, where its gateway listens, and how it is trusted."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.core.endpoints import TcpAddress


@dataclass(frozen=True, slots=True)
class Region:
    """One other region, as `--regions-file` lists it."""

    name: str
    http: TcpAddress
    grpc: TcpAddress
    max_share: float = 1.0
    """Largest part of the requests asked here that may be sent there."""
