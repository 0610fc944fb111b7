"""Where one Triton listens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TritonEndpoints:
    """Host and ports of one Triton; `metrics_port` is None where its metrics are not to be had."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int | None


def authority(host: str, port: int) -> str:
    """`host:port` as URLs and gRPC take it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
