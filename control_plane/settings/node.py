"""Settings of node agents: of `tidegate node` itself, and of gateways that use nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import Field

from control_plane.core.endpoints import Endpoints, TritonSockets
from control_plane.core.errors import StartupError
from control_plane.settings.fields import Group, Port, SecretFile, first_line
from control_plane.settings.triton_urls import parse_triton_url


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

    attach: str = ""
    """A Triton that runs already, to attach to instead of starting one: `http://HOST:HTTP_PORT`, with
    `?grpc_port=N&metrics_port=N` as in `triton_url`, or `unix:/FOLDER` with its sockets `http.sock` and `grpc.sock`
    (`--grpc-port=1`). It must run with `--model-control-mode=explicit` and load from the folder
    `triton/repository` in the node's `state_dir`, under the same path for both, as all folders of models are. The
    node unloads what it finds loaded there, and never starts, stops or signals it."""

    attach_secret_file: SecretFile | None = None
    """File whose first line is the secret of an attached Triton's calls for models, which it got by
    `--grpc-restricted-protocol=model-repository:tidegate-control=SECRET` and the same in
    `--http-restricted-api`. Without such a lock others may load models there, and nothing is cached."""

    attach_image: str = ""
    """What an attached Triton runs in, such as its image with digest. It is part of the cache's keys: the node sees
    the models' files, and not the backends and packages in another container."""

    @property
    def attached(self) -> Endpoints | None:
        """The Triton to attach to; None where one is started. Raises StartupError."""
        if not self.attach:
            return None
        secret = first_line(self.attach_secret_file) or ""
        scheme, _, folder = self.attach.partition(":")
        if scheme == "unix":
            if not folder.startswith("/"):
                raise StartupError(f"--attach {self.attach}: expected unix:/FOLDER, the folder of http.sock and grpc.sock")
            return TritonSockets(folder.rstrip("/"), control_secret=secret)
        endpoints = parse_triton_url(self.attach, setting="--attach")
        if endpoints.http_is_tls or endpoints.grpc_is_tls or endpoints.node:
            raise StartupError(f"--attach {self.attach}: expected http://HOST:PORT or unix:/FOLDER, without TLS: it is beside the node")
        return replace(endpoints, control_secret=secret)
