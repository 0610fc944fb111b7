"""Where Tritons listen, and what is said of those that others run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CONTROL_FIELD = "tidegate-control"
"""The field of an HTTP request that shows Triton the `control_secret`."""

GRPC_CONTROL_FIELD = f"triton-grpc-protocol-{CONTROL_FIELD}"
"""The same, of a gRPC call; the prefix is Triton's."""

HTTP_SOCKET, GRPC_SOCKET, METRICS_SOCKET = "http.sock", "grpc.sock", "metrics.sock"
"""Files of an embedded Triton's sockets, in a folder of their own."""

GRPC_SOCKET_PORT = 1
"""Triton 24.10 appends a colon and the port to whatever address gRPC is to listen at, and refuses port 0."""

ONLY = "triton"
"""The server's name where there is one."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP port of a host."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """What HTTP's `Host` and HTTP/2's `:authority` say of it."""
        return authority(self.host, self.port)

    def __str__(self) -> str:
        return self.authority


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket, by the path of its file."""

    path: str

    @property
    def authority(self) -> str:
        """What HTTP's `Host` and HTTP/2's `:authority` say of it, as gRPC has it: a path is no host."""
        return "localhost"

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address = TcpAddress | UnixAddress
"""Where a server listens."""


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

    @property
    def http(self) -> Address:
        return TcpAddress(self.host, self.http_port)

    @property
    def grpc(self) -> Address:
        return TcpAddress(self.host, self.grpc_port)

    @property
    def metrics(self) -> Address | None:
        return None if self.metrics_port is None else TcpAddress(self.host, self.metrics_port)


@dataclass(frozen=True, slots=True)
class TritonSockets:
    """Unix sockets of one life of an embedded Triton, in a folder that is that life's alone and that only its user may enter."""

    folder: str
    control_secret: str = field(default="", repr=False)
    """As of `TritonEndpoints`."""

    @property
    def place(self) -> str:
        """What tells it from every other, also from the same Triton's lives before."""
        return self.folder

    @property
    def http(self) -> Address:
        return UnixAddress(f"{self.folder}/{HTTP_SOCKET}")

    @property
    def grpc(self) -> Address:
        return UnixAddress(f"{self.folder}/{GRPC_SOCKET}:{GRPC_SOCKET_PORT}")

    @property
    def metrics(self) -> Address | None:
        return UnixAddress(f"{self.folder}/{METRICS_SOCKET}")


Endpoints = TritonEndpoints | TritonSockets
"""Where one Triton listens, and the secret by which it knows us."""


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
