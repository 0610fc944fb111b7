"""Settings of node agents: of `tidegate node` itself, and of gateways that use nodes."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from control_plane.settings.fields import Group, Port, SecretFile


class NodeSettings(Group):
    """A node agent, and the way from gateways to it."""

    node_host: str = "127.0.0.1"
    """Address on which `tidegate node` listens for gateways. Whoever may use it can load models, which means
    running code: beyond loopback it needs `node_secret_file` or client certificates (`node_ca`)."""

    node_port: Port = 8500
    """Port on which `tidegate node` listens for gateways; 0 chooses a free one."""

    node_secret_file: SecretFile | None = None
    """File whose first line is a secret of at least 16 characters that nodes and their gateways share, such as a
    mounted Kubernetes Secret; `openssl rand -hex 32` makes one. Each side proves to the other that it has it,
    and it is never sent. Read at the start."""

    node_certificate: Path | None = None
    """PEM file with this side's certificate and its chain, for TLS between nodes and gateways. A node with one
    speaks TLS only. Needs `node_key`."""

    node_key: Path | None = None
    """PEM file with the key of `node_certificate`, without a passphrase."""

    node_ca: Path | None = None
    """PEM file with the authorities that may vouch for the other side. A node with one demands certificates of
    its gateways; a gateway with one speaks TLS to its nodes. Use an authority of their own: whatever it signs
    may load models."""

    node_triton_host: str = "127.0.0.1"
    """Address on which the Triton of `tidegate node` serves inference, for gateways. Triton itself asks nobody
    who they are: beyond loopback let only gateways reach it (a network policy, a private network, or a proxy
    with TLS in front of it)."""

    node_triton_http_port: int = Field(8000, ge=1, le=65535)
    """HTTP port of the node's Triton."""

    node_triton_grpc_port: int = Field(8001, ge=1, le=65535)
    """gRPC port of the node's Triton."""

    node_triton_metrics_port: int = Field(8002, ge=1, le=65535)
    """Port of the metrics page of the node's Triton."""
