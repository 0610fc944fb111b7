"""What the gateway's hop costs beside nginx's and a Python proxy's: one upstream behind all of them, in turns within one run.

    python -m perf.gateway [--upstream stand-in|triton] [--only http|grpc] [--rounds 5] [--seconds 1]
                           [--connections 1 8 64] [--sizes 1536 1048576] [--peers tidegate nginx ...]

Load generator, peer and upstream share this machine's cores: where they want more than there are, throughput says how much CPU
all three need together, and added latency is partly waiting for a core. CPU per request is the figure that does not depend on it.
Writes perf/results/gateway.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from perf.gateway import plot as gateway_plot
from perf.gateway.report import OVER_SOCKETS, Case, Report, size_of
from perf.load.echo_requests import Echo
from perf.load.keys import LIMITED, make_keys
from perf.load.load_generators import Grpc, Http, SocketHttp
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.measurement.runs import GeneratedRun
from perf.peers.nginx import nginx
from perf.servers.processes import cpu_s, free_port, running
from perf.servers.serving import PROTOCOLS, Tidegate, attached
from perf.servers.upstreams import UPSTREAMS, Addresses, upstream

PEERS = {
    "http": ("straight", "nginx", "tidegate", OVER_SOCKETS, "tidegate-keys", "starlette-aiohttp", "fastapi-httpx"),
    "grpc": ("straight", "nginx", "tidegate", OVER_SOCKETS, "tidegate-keys", "grpc-aio", "grpc-aio-to-http"),
}
"""`tidegate-keys` is the same with authentication, for a tenant with every limit. All peers are sent the key.
Over its Unix sockets Tidegate is asked by the fewest connections only, for latency; over HTTP by h2load."""
_UPSTREAM_PROTOCOL = {"grpc-aio-to-http": "http"}


@dataclass(frozen=True, slots=True)
class Peer:
    protocol: str
    name: str
    address: str
    pid: int | None
    """None for the upstream itself."""


def main() -> None:
    parser = harness.parser(__doc__, rounds=5, seconds=1.0)
    parser.add_argument("--upstream", choices=UPSTREAMS, default="stand-in")
    parser.add_argument("--only", choices=PROTOCOLS, help="one protocol")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--sizes", type=int, nargs="+", default=[384 * 4, 1 << 20], help="bytes of the tensor, which comes back as well")
    parser.add_argument("--peers", nargs="+", choices=sorted({*PEERS["http"], *PEERS["grpc"]}), help="besides straight; all of them")
    harness.carry_out(Report, parser.parse_args(), _measure, gateway_plot.draw)


def _measure(arguments: argparse.Namespace) -> Result:
    runs: dict[Case, list[GeneratedRun]] = {}
    for tensor_bytes in arguments.sizes:
        runs |= _measure_size(tensor_bytes, arguments)
    return Result(runs)


def _measure_size(tensor_bytes: int, arguments: argparse.Namespace) -> dict[Case, list[GeneratedRun]]:
    echo = Echo(tensor_bytes)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-perf-")))
        addresses = stack.enter_context(upstream(arguments.upstream, echo))
        state = folder / "state"
        state.mkdir(mode=0o700)
        key = make_keys(state, LIMITED)[LIMITED.name]
        generators: dict[str, Http | Grpc | SocketHttp] = {"http": Http(echo, folder, key=key), "grpc": Grpc(echo, folder, key=key)}
        over_sockets = generators | {"http": SocketHttp(echo, folder, key=key)}
        ways: dict[Case, Callable[[], GeneratedRun]] = {}
        for peer in _start_peers(stack, addresses, folder, arguments):
            is_socket = peer.name == OVER_SOCKETS
            generator = (over_sockets if is_socket else generators)[peer.protocol]
            for connections in [min(arguments.connections)] if is_socket else arguments.connections:
                case = Case(peer.protocol, tensor_bytes, connections, peer.name)
                ways[case] = partial(_run, peer, echo, generator, connections, arguments.seconds)
        # A case's peers one after the other: what is compared is measured within seconds.
        return interleave({case: ways[case] for case in sorted(ways, key=_beside_its_peers)}, arguments.rounds)


def _beside_its_peers(case: Case) -> tuple[int, int]:
    return PROTOCOLS.index(case.protocol), case.connections


def _run(peer: Peer, echo: Echo, generator: Http | Grpc | SocketHttp, connections: int, seconds: float) -> GeneratedRun:
    harness.say(f"{peer.protocol} {peer.name}, {size_of(echo.tensor_bytes)}, {connections} connections")
    if not isinstance(generator, SocketHttp):  # NVIDIA's HTTP client knows no Unix sockets; h2load counts what is no answer
        echo.check(peer.protocol, peer.address, key=generator.key)
    before_s = cpu_s(peer.pid) if peer.pid else 0.0
    loaded = generator.run(peer.address, connections=connections, duration_s=seconds)
    used_s = cpu_s(peer.pid) - before_s if peer.pid else 0.0
    return loaded.at_server(used_s)


def _start_peers(stack: contextlib.ExitStack, addresses: Addresses, folder: Path, arguments: argparse.Namespace) -> Iterator[Peer]:
    """Every peer of the protocols asked for; all of them run to the end, idle while another is measured."""
    protocols = [arguments.only] if arguments.only else PROTOCOLS
    wanted = {
        name for protocol in protocols for name in PEERS[protocol] if arguments.peers is None or name in ("straight", *arguments.peers)
    }
    ours: dict[str, Tidegate] = {}
    sockets = {protocol: folder / f"{protocol}.sock" for protocol in PROTOCOLS}
    if not wanted.isdisjoint(("tidegate", OVER_SOCKETS)):
        flags = [word for protocol, path in sockets.items() for word in (f"--{protocol}-socket", str(path))]
        ours["tidegate"] = stack.enter_context(attached(addresses, *flags))
    if "tidegate-keys" in wanted:
        ours["tidegate-keys"] = stack.enter_context(attached(addresses, "--authentication", state=folder / "state"))
    for protocol in protocols:
        for name in PEERS[protocol]:
            if name == "straight":
                yield Peer(protocol, name, addresses[protocol], None)
            elif name not in wanted:
                continue
            elif name == OVER_SOCKETS:
                yield Peer(protocol, name, f"unix:{sockets[protocol]}", ours["tidegate"].pid)
            elif name in ours:
                yield Peer(protocol, name, ours[name].addresses[protocol], ours[name].pid)
            else:
                upstream_address = addresses[_UPSTREAM_PROTOCOL.get(name, protocol)]
                started = nginx(protocol, upstream_address) if name == "nginx" else _python_peer(name, upstream_address)
                yield Peer(protocol, name, *stack.enter_context(started))


@contextlib.contextmanager
def _python_peer(name: str, upstream_address: str) -> Iterator[tuple[str, int]]:
    port = free_port()
    command = [sys.executable, "-m", f"perf.peers.{name.replace('-', '_')}", "--port", str(port), "--upstream", upstream_address]
    with running(command, port) as pid:
        yield f"127.0.0.1:{port}", pid


if __name__ == "__main__":
    main()
