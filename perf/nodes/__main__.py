"""What a request costs to a server on a node beside the same one embedded, and what a node takes at rest.

    python -m perf.nodes [--rounds 5] [--seconds 3] [--connections 1 32] [--models 5 1000] [--rest-s 20]

The gateways are fleets of one Triton that listens on TCP, with the echo model and `384` floats over HTTP (wrk), all run to
the end, and take turns. A second embedded one shows by how much two that are alike differ. The nodes at rest have so many
Python models, of which one is loaded, and a gateway connected, whose pings they answer. Writes perf/results/nodes.json and .md.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from control_plane.host.process_memory import held_bytes
from perf.load.echo_requests import MODEL, Echo
from perf.load.load_generators import Http
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.nodes.report import ALIKE, AT_REST, EMBEDDED, NODE, Case, Report, Run
from perf.servers.processes import PROJECT, end, free_port, own_cpu_s
from perf.servers.serving import Tidegate, tidegate

_ECHO = PROJECT / "perf/models" / MODEL
_BUDGET = "1GiB"
_START_TIMEOUT_S = 120.0
_SETTLED_S = 5.0
_SECRET = "a secret of measurements"


def main() -> None:
    parser = harness.parser(__doc__, rounds=5, seconds=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--models", type=int, nargs="*", default=[5, 1000], help="on nodes at rest")
    parser.add_argument("--rest-s", type=float, default=20.0)
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    echo = Echo(384 * 4)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-perf-")))
        models = _models(folder / "models", 1)
        flags = ["--triton-transport", "tcp", "--model-repository", str(models), "--load", MODEL, "--memory-budget", _BUDGET]
        embedded, alike = (stack.enter_context(tidegate(flags)) for _ in range(2))
        _, _, gateway = stack.enter_context(_on_node(folder / "node", models))
        generator = Http(echo, folder)
        ways: dict[Case, Callable[[], Run]] = {
            Case(where, connections): partial(_run, started, where, echo, generator, connections, int(arguments.seconds))
            for connections in arguments.connections
            for where, started in ((EMBEDDED, embedded), (NODE, gateway), (ALIKE, alike))
        }
        for way in ways.values():
            way()  # warm
        runs = interleave(ways, arguments.rounds)
    for count in arguments.models:
        runs[Case(AT_REST, models=count)] = [_rest(count, arguments.rest_s)]
    return Result(runs)


def _run(gateway: Tidegate, where: str, echo: Echo, generator: Http, connections: int, seconds: int) -> Run:
    harness.say(f"{where}, {connections} connections")
    echo.check("http", gateway.addresses["http"])
    before_s = own_cpu_s(gateway.pid)  # not Triton's, which is below an embedding gateway
    loaded = generator.run(gateway.addresses["http"], connections=connections, duration_s=seconds)
    used_s = own_cpu_s(gateway.pid) - before_s
    return Run(loaded.requests / loaded.seconds, loaded.p50_ms, loaded.p99_ms, used_s / max(loaded.requests, 1) * 1e6, loaded.errors)


def _rest(count: int, seconds: float) -> Run:
    harness.say(f"a node at rest with {count} models")
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as folder:
        models = _models(Path(folder) / "models", count)
        with _on_node(Path(folder) / "node", models) as (pid, ready_s, gateway):
            Echo(64).check("http", gateway.addresses["http"])
            time.sleep(min(_SETTLED_S, seconds))
            before_s, began_s = own_cpu_s(pid), time.monotonic()
            time.sleep(seconds)
            percent = 100 * (own_cpu_s(pid) - before_s) / (time.monotonic() - began_s)
            return Run(core_percent=percent, mib=(held_bytes([pid]) or math.nan) / 2**20, ready_s=ready_s)


def _models(folder: Path, count: int) -> Path:
    """A repository of so many copies of the echo model, the first under its own name."""
    for number in range(count):
        shutil.copytree(_ECHO, folder / (MODEL if number == 0 else f"{MODEL}-{number}"))
    return folder


@contextlib.contextmanager
def _on_node(root: Path, models: Path) -> Iterator[tuple[int, float, Tidegate]]:
    """A node, with its process and how long it took to be ready, and a gateway before its Triton."""
    root.mkdir()
    (secret := root / "secret").write_text(_SECRET)
    http, grpc, metrics, port = (free_port() for _ in range(4))
    ports = {"--node-port": port, "--node-triton-http-port": http, "--node-triton-grpc-port": grpc, "--node-triton-metrics-port": metrics}
    command = [sys.executable, "-m", "control_plane", "node", "--state-dir", str(root / "state"), "--model-repository", str(models)]
    command += ["--node-secret-file", str(secret), *(part for flag, value in ports.items() for part in (flag, str(value)))]
    began_s = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=PROJECT, start_new_session=True)
    try:
        while not (root / "state/endpoints.json").exists():
            if process.poll() is not None or time.monotonic() > began_s + _START_TIMEOUT_S:
                raise RuntimeError("the node did not start; its words are above")
            time.sleep(0.05)
        ready_s = time.monotonic() - began_s
        url = f"http://127.0.0.1:{http}?grpc_port={grpc}&metrics_port={metrics}&node=127.0.0.1:{port}"
        with tidegate(["--triton-url", url, "--node-secret-file", str(secret), "--load", MODEL, "--memory-budget", _BUDGET]) as gateway:
            yield process.pid, ready_s, gateway
    finally:
        end(process)


if __name__ == "__main__":
    main()
