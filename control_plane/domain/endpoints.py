"""Where Tritons listen, and what is said of those that others run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CONTROL_FIELD = "tidegate-control"
"""The field of an HTTP request that shows Triton the `control_secret`."""

GRPC_CONTROL_FIELD = f"triton-grpc-protocol-{CONTROL_FIELD}"
"""The same, of a gRPC call; the prefix is Triton's."""

ONLY = "triton"
"""The server's name where there is one."""


@dataclass(frozen=True, slots=True)
class TritonEndpoints:
    """Host and ports of one Triton; `metrics_port` is None where its metrics are not to be had."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int | None
    control_secret: str = field(default="", repr=False)
    """Without it, Triton refuses to list, load and unload models; empty where it asks nobody for one."""

    @property
    def place(self) -> str:
        """What tells it from every other: no two listen there."""
        return authority(self.host, self.grpc_port)


@dataclass(frozen=True, slots=True)
class ListedServer:
    """A Triton that others run, as this gateway is told of it."""

    name: str
    endpoints: TritonEndpoints
    pool: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    memory_budget: int | None = None
    """Bytes of models; None: as many as the fleet's others."""


def server_names(count: int) -> tuple[str, ...]:
    """Of servers that nobody has given any."""
    return (ONLY,) if count == 1 else tuple(f"{ONLY}-{number}" for number in range(count))


def authority(host: str, port: int) -> str:
    """`host:port` as URLs and gRPC take it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
