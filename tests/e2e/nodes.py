"""A `tidegate node` for tests: started as a user starts it, on free ports of loopback, with a secret."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import tritonclient.http

from tests.e2e import tidegate as servers
from tests.e2e.tidegate import COMPLETE, Tidegate, descendants, living

SECRET = "a secret of tests that is long enough"


@dataclass
class RunningNode:
    """A running node and the ports of its Triton."""

    tidegate: Tidegate
    http_port: int
    grpc_port: int
    metrics_port: int
    arguments: tuple[str, ...]

    @property
    def address(self) -> str:
        return self.tidegate.endpoints["node"]

    @property
    def url(self) -> str:
        """Its entry in `--triton-url`."""
        ports = f"grpc_port={self.grpc_port}&metrics_port={self.metrics_port}"
        return f"http://127.0.0.1:{self.http_port}?{ports}&node={self.address}"

    def restart(self) -> None:
        """Start it again, at the same ports, after it has ended."""
        again = start_at(self.tidegate.state_dir, self.address, (self.http_port, self.grpc_port, self.metrics_port), *self.arguments)
        self.tidegate = again.tidegate


def secret_file(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "node-secret"
    path.write_text(SECRET + "\n")
    return path


def start_node(state_dir: Path, *arguments: str, env: dict[str, str] | None = None) -> RunningNode:
    """Start a node with these options, and wait until it is ready."""
    return start_at(state_dir, "127.0.0.1:0", free_ports(3), *arguments, env=env)


def start_at(state_dir: Path, address: str, ports: tuple[int, ...], *arguments: str, env: dict[str, str] | None = None) -> RunningNode:
    http, grpc, metrics = ports
    host, _, port = address.rpartition(":")
    where = ("--node-host", host, "--node-port", port, "--node-secret-file", str(secret_file(state_dir.parent)))
    triton = ("--node-triton-http-port", str(http), "--node-triton-grpc-port", str(grpc), "--node-triton-metrics-port", str(metrics))
    running = servers.start_program(state_dir, ("node", *where, *triton, *arguments), env=env)
    return RunningNode(running, http, grpc, metrics, arguments)


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that are free now; another process may take one before it is bound."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(int(each.getsockname()[1]) for each in sockets)


@dataclass(frozen=True)
class Host:
    """A Triton that gateways attach to: what they name it by, and how whoever may list its models asks it."""

    url: str
    address: str
    fields: dict[str, str]
    flags: tuple[str, ...]
    """Flags of gateways before this Triton, beside those of every gateway."""

    def loaded(self) -> set[str]:
        """Its models that are loaded, or on their way."""
        index = tritonclient.http.InferenceServerClient(self.address).get_model_repository_index(headers=self.fields)
        return {line["name"] for line in index if line.get("state", "UNAVAILABLE") != "UNAVAILABLE"}


@contextmanager
def host_on(place: str, root: Path, repository: Path) -> Iterator[Host]:
    """Context manager: a Triton with a node, or one into which anybody may load models."""
    flags = ("--model-repository", str(repository))
    if place == NODES:
        node = start_node(root / "state", *flags, COMPLETE)
        running, secret = node.tidegate, ("--node-secret-file", str(secret_file(root)))
        host = Host(node.url, f"127.0.0.1:{node.http_port}", dict(running.control_fields()), secret)
    else:
        running = servers.start(root / "state", *flags, env=servers.SHARED_TRITON)
        ports = [running.triton_port(name) for name in ("HTTPService", "GRPCInferenceService", "Metrics Service")]
        url = "http://127.0.0.1:{}?grpc_port={}&metrics_port={}".format(*ports)
        host = Host(url, f"127.0.0.1:{ports[0]}", {}, flags)
    try:
        yield host
    finally:
        running.kill()


EMBEDDED, NODES = "embedded", "nodes"
ATTACHED = "attached"
PLACES = (EMBEDDED, NODES)
"""Where the Tritons of a fleet are: beside the gateway, or on hosts with nodes."""


@contextmanager
def fleet_on(
    place: str,
    root: Path,
    *arguments: str,
    repository: Path,
    sources: tuple[str, ...] = (),
    count: int = 2,
    env: dict[str, str] | None = None,
) -> Iterator[tuple[Tidegate, list[RunningNode]]]:
    """Context manager: a gateway with so many Tritons, each with the models of `repository`; `sources` are more flags of
    whoever has the models' files. At its end all must end in order, and leave no process."""
    nodes: list[RunningNode] = []
    sources = ("--model-repository", str(repository), *sources)
    if place == NODES:
        with ThreadPoolExecutor(count) as threads:
            started = [threads.submit(start_node, root / f"node-{n}/state", *sources, env=env) for n in range(count)]
            nodes = [each.result() for each in started]
        where: tuple[str, ...] = ("--triton-url", ",".join(node.url for node in nodes), "--node-secret-file", str(secret_file(root)))
    else:
        where = ("--servers", str(count), *sources)
    gateway = None
    try:
        gateway = servers.start(root / "gateway", *where, *arguments, env=env)
        gateway.nodes = [node.tidegate for node in nodes]
        yield gateway, nodes
    except BaseException:
        for each in [*([] if gateway is None else [gateway]), *(node.tidegate for node in nodes)]:
            each.kill()
        raise
    for each in (gateway, *(node.tidegate for node in nodes)):
        below = descendants(each.process.pid)
        assert each.stop() == 0, each.said()
        assert not living(below), "processes outlived it"
