"""What an answer from the cache costs, beside nginx answering by itself (`return 200`) with as many bytes.

    python -m perf.cache_hits [--rounds 5] [--seconds 2] [--connections 1 64] [--only http|grpc]

One request over and over, to the model `echo` with its answers kept: all but the first are hits. `tidegate-keys` has the key of a
tenant with every limit. `-traced` are HTTP callers who give each request a `traceparent` and an `x-request-id` of its own, held
against nginx under the same requests. Load generator and server share this machine's cores. Writes perf/results/cache-hits.json
and .md.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from perf.cache_hits.report import NGINX, TRACED, Case, Report
from perf.load.echo_requests import MODEL, Echo
from perf.load.keys import LIMITED, make_keys
from perf.load.load_generators import Grpc, Http
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.measurement.runs import GeneratedRun
from perf.peers.nginx import answering_nginx
from perf.servers.processes import PROJECT, cpu_s
from perf.servers.serving import PROTOCOLS, tidegate

_TENSOR_BYTES = 384 * 4
_KEEPS_ANSWERS = "response_cache { enable: true }\n"


@dataclass(frozen=True, slots=True)
class Peer:
    protocol: str
    name: str
    address: str
    pid: int


def main() -> None:
    parser = harness.parser(__doc__, rounds=5, seconds=2.0)
    parser.add_argument("--only", choices=PROTOCOLS, help="one protocol")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 64])
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    echo = Echo(_TENSOR_BYTES)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-perf-")))
        (folder / "state").mkdir(mode=0o700)
        key = make_keys(folder / "state", LIMITED)[LIMITED.name]
        generators: dict[str, Http | Grpc] = {"http": Http(echo, folder, key=key), "grpc": Grpc(echo, folder, key=key)}
        (folder / "traced").mkdir()
        traced = Http(echo, folder / "traced", key=key, traced=True)
        ways: dict[Case, Callable[[], GeneratedRun]] = {}
        for peer in _peers(stack, echo, folder, [arguments.only] if arguments.only else list(PROTOCOLS)):
            if not peer.name.startswith(NGINX):
                echo.check(peer.protocol, peer.address, key=key)
            for connections in arguments.connections:
                case = Case(peer.protocol, connections, peer.name)
                generator = traced if peer.name.endswith(TRACED) else generators[peer.protocol]
                ways[case] = partial(_run, peer, generator, connections, arguments.seconds)
        in_turn = sorted(ways, key=lambda case: (PROTOCOLS.index(case.protocol), case.connections))
        return Result(interleave({case: ways[case] for case in in_turn}, arguments.rounds))


def _peers(stack: contextlib.ExitStack, echo: Echo, folder: Path, protocols: list[str]) -> Iterator[Peer]:
    repository = _repository(folder)
    flags = ["--model-repository", str(repository), "--load", MODEL]
    ours = {
        "tidegate": stack.enter_context(tidegate(flags)),
        "tidegate-keys": stack.enter_context(tidegate([*flags, "--authentication"], state=folder / "state")),
    }
    sizes = {"http": len(echo.http_answer().body), "grpc": len(echo.grpc_answer())}
    for protocol in protocols:
        address, pid = stack.enter_context(answering_nginx(protocol, sizes[protocol]))
        for ending in ("", TRACED) if protocol == "http" else ("",):  # h2load cannot change a header from call to call
            yield Peer(protocol, NGINX + ending, address, pid)
            for name, started in ours.items():
                yield Peer(protocol, name + ending, started.addresses[protocol], started.pid)


def _repository(folder: Path) -> Path:
    model = folder / "models" / MODEL
    shutil.copytree(PROJECT / "perf" / "models" / MODEL, model)
    config = model / "config.pbtxt"
    config.write_text(config.read_text() + _KEEPS_ANSWERS)
    return model.parent


def _run(peer: Peer, generator: Http | Grpc, connections: int, seconds: float) -> GeneratedRun:
    before_s = cpu_s(peer.pid)
    loaded = generator.run(peer.address, connections=connections, duration_s=seconds)
    used_s = cpu_s(peer.pid) - before_s
    return loaded.at_server(used_s)


if __name__ == "__main__":
    main()
