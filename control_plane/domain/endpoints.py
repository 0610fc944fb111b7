"""Where one Triton listens."""

from __future__ import annotations

from dataclasses import dataclass, field

CONTROL_FIELD = "tidegate-control"
"""The field of an HTTP request that shows Triton the `control_secret`."""

GRPC_CONTROL_FIELD = f"triton-grpc-protocol-{CONTROL_FIELD}"
"""The same, of a gRPC call; the prefix is Triton's."""


@dataclass(frozen=True, slots=True)
class TritonEndpoints:
    """Host and ports of one Triton; `metrics_port` is None where its metrics are not to be had."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int | None
    control_secret: str = field(default="", repr=False)
    """Without it, Triton refuses to list, load and unload models; empty where it asks nobody for one."""


def authority(host: str, port: int) -> str:
    """`host:port` as URLs and gRPC take it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
