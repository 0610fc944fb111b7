"""Addresses of Tritons: TCP ports or Unix sockets, and the list entries of Tritons that others run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CONTROL_FIELD = "tidegate-control"
"""HTTP header that carries the `control_secret` to Triton (its flag `--http-restricted-api`)."""

GRPC_CONTROL_FIELD = f"triton-grpc-protocol-{CONTROL_FIELD}"
"""gRPC metadata key that carries the `control_secret`; the prefix is Triton's
(`--grpc-restricted-protocol`)."""

HTTP_SOCKET, GRPC_SOCKET, METRICS_SOCKET = "http.sock", "grpc.sock", "metrics.sock"
"""File names of an embedded Triton's sockets, which have a folder of their own."""

GRPC_SOCKET_PORT = 1
"""Triton 24.10 appends a colon and the port to any gRPC address, also to a Unix socket's, and refuses port
0."""

ONLY = "triton"
"""Name of the server where there is a single one."""


@dataclass(frozen=True, slots=True)
class UpstreamCredentials:
    """Credentials that the gateway shows to a Triton that others run, and the authorities that it trusts over TLS; the files
    are PEM.
    """

    ca: str = ""
    """Path of the authorities' certificates; empty: those of this machine."""
    certificate: str = ""
    """Path of the gateway's own certificate, with its chain; empty: it shows none."""
    key: str = ""
    """Path of the certificate's key, which has no passphrase."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Header fields, in lower case, that every request to Triton carries, such as `authorization`."""


NO_CREDENTIALS = UpstreamCredentials()


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP port of a host."""

    host: str
    port: int
    tls: UpstreamCredentials | None = None
    """The credentials for TLS; None: plain text."""

    @property
    def authority(self) -> str:
        """Value of HTTP's `Host` and HTTP/2's `:authority` for this address."""
        return authority(self.host, self.port)

    def __str__(self) -> str:
        return self.authority


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket, by the path of its file."""

    path: str

    @property
    def authority(self) -> str:
        """Value of HTTP's `Host` and HTTP/2's `:authority`: `localhost`, as gRPC does, since a path is not a
        host.
        """
        return "localhost"

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address = TcpAddress | UnixAddress
"""Where a server listens."""


@dataclass(frozen=True, slots=True)
class TritonEndpoints:
    """Host and ports of one Triton; `metrics_port` is None where it serves no metrics."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int | None
    control_secret: str = field(default="", repr=False)
    """Secret without which Triton refuses to list, load and unload models; empty where it demands none."""
    http_is_tls: bool = False
    """Whether HTTP and the metrics page are behind TLS: Triton itself has none there, a proxy before it may."""
    grpc_is_tls: bool = False
    credentials: UpstreamCredentials = NO_CREDENTIALS
    node: str = ""
    """`HOST:PORT` of the node agent beside the Triton, which alone loads its models; empty where there is
    none."""

    @property
    def address(self) -> str:
        """Identifier of the Triton: no two can listen on the same host and port."""
        return authority(self.host, self.grpc_port)

    @property
    def http(self) -> Address:
        return TcpAddress(self.host, self.http_port, self._tls(self.http_is_tls))

    @property
    def grpc(self) -> Address:
        return TcpAddress(self.host, self.grpc_port, self._tls(self.grpc_is_tls))

    @property
    def metrics(self) -> Address | None:
        return None if self.metrics_port is None else TcpAddress(self.host, self.metrics_port, self._tls(self.http_is_tls))

    def _tls(self, is_on: bool) -> UpstreamCredentials | None:
        return self.credentials if is_on else None


@dataclass(frozen=True, slots=True)
class TritonSockets:
    """Unix sockets of one process of an embedded Triton, in a folder of its own that only its user may enter.

    A restarted Triton gets a new folder, so that no connection to the process before it is mistaken for one
    to it.
    """

    folder: str
    control_secret: str = field(default="", repr=False)
    """Secret without which Triton refuses to list, load and unload models; empty where it demands none."""

    @property
    def credentials(self) -> UpstreamCredentials:
        """None are needed: only this user can open the sockets."""
        return NO_CREDENTIALS

    @property
    def address(self) -> str:
        """Identifier of the Triton's process; differs from that of the process before a restart."""
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
"""Addresses of one Triton, and the secret for its model control."""


@dataclass(frozen=True, slots=True)
class ListedServer:
    """A Triton that others run, as `--triton-url` or `--servers-file` lists it."""

    name: str
    endpoints: TritonEndpoints
    pool: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    memory_budget: int | None = None
    """Bytes that models may take there; None means the fleet's `memory_budget`."""


def server_names(count: int) -> tuple[str, ...]:
    """Return default names for this many servers."""
    return (ONLY,) if count == 1 else tuple(f"{ONLY}-{number}" for number in range(count))


def authority(host: str, port: int) -> str:
    """Format `host:port` as URLs and gRPC expect it, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
