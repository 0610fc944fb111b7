"""What a request costs to a server on a node beside the same one embedded, and what a node takes at rest.

    python -m perf.nodes [--rounds 18] [--seconds 1] [--starts 3] [--connections 1 32] [--models 5 1000] [--rest-s 30]

The three gateways are fleets of one Triton that listens on TCP, with the echo model and `384` floats over HTTP (wrk): one
before a node, two that embed it and are alike, which shows what two differ by without a node. They take turns, in another
order each round. Gateways that are alike but were started one after the other differ for as long as they run, so all are
started anew `--starts` times, another one first each time. The nodes at rest have so many Python models, of which one is
loaded, and a gateway connected, whose pings they answer. Writes perf/results/nodes.json and .md.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from control_plane.host.memory.process_memory import held_bytes
from perf.load.echo_requests import MODEL, Echo
from perf.load.load_generators import Http
from perf.measurement import harness
from perf.measurement.report import Result
from perf.nodes.report import ALIKE, AT_REST, EMBEDDED, NODE, Case, Report, Run
from perf.servers import processes
from perf.servers.processes import PROJECT, end, free_port, own_cpu_s
from perf.servers.serving import Tidegate, tidegate

_ECHO = PROJECT / "perf/models" / MODEL
_BUDGET = "1GiB"
_START_TIMEOUT_S = 120.0
_SETTLED_S = 5.0
_SECRET = "a secret of measurements"


def main() -> None:
    parser = harness.parser(__doc__, rounds=18, seconds=1.0)
    parser.add_argument("--starts", type=int, default=3, help="of the gateways, among which the rounds are divided")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--models", type=int, nargs="*", default=[5, 1000], help="on nodes at rest")
    parser.add_argument("--rest-s", type=float, default=30.0, help="a node looks at all its models every 5 to 30 s: a whole period")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    runs: dict[Case, list[Run]] = defaultdict(list)
    orders = itertools.cycle(itertools.permutations((EMBEDDED, NODE, ALIKE)))
    for start, rounds in enumerate(_divided(arguments.rounds, arguments.starts)):
        for case, found in _started(start, itertools.islice(orders, rounds), arguments.connections, arguments.seconds).items():
            runs[case] += found
    for count in arguments.models:
        runs[Case(AT_REST, models=count)] = [_rest(count, arguments.rest_s)]
    return Result(runs)


def _divided(rounds: int, starts: int) -> list[int]:
    """Return how many rounds each start has."""
    each, more = divmod(rounds, starts)
    return [each + (start < more) for start in range(min(starts, rounds))]


def _started(start: int, orders: Iterable[Sequence[str]], connections: Sequence[int], seconds: float) -> dict[Case, list[Run]]:
    """Start the three gateways, another one first at each start, and ask them in each of these orders."""
    echo = Echo(384 * 4)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-perf-")))
        models = _models(folder / "models", 1)
        flags = ["--triton-transport", "tcp", "--model-repository", str(models), "--load", MODEL, "--memory-budget", _BUDGET]
        gateways: dict[str, Tidegate] = {}
        begun = (EMBEDDED, NODE, ALIKE)
        for where in (*begun[start % 3 :], *begun[: start % 3]):
            on_node = where == NODE
            gateways[where] = stack.enter_context(_on_node(folder / "node", models))[2] if on_node else stack.enter_context(tidegate(flags))
        generator = Http(echo, folder)
        cases = [Case(where, count) for count in connections for where in begun]
        ask = {case: partial(_run, gateways[case.where], case.where, echo, generator, case.connections, seconds) for case in cases}
        for case in cases:
            ask[case]()  # warm
        runs: dict[Case, list[Run]] = {case: [] for case in cases}
        for order, count in itertools.product(orders, connections):
            for where in order:
                runs[Case(where, count)].append(ask[Case(where, count)]())
        return runs


def _run(gateway: Tidegate, where: str, echo: Echo, generator: Http, connections: int, seconds: float) -> Run:
    harness.say(f"{where}, {connections} connections")
    echo.check("http", gateway.addresses["http"])
    before_s = own_cpu_s(gateway.pid)  # not Triton's, which is below an embedding gateway
    loaded = generator.run(gateway.addresses["http"], connections=connections, duration_s=seconds)
    found = loaded.at_server(own_cpu_s(gateway.pid) - before_s)
    return Run(found.requests_per_s, found.p50_ms, found.p99_ms, found.cpu_us, found.errors)


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
    words = ["node", "--state-dir", str(root / "state"), "--model-repository", str(models)]
    words += ["--node-secret-file", str(secret), *(part for flag, value in ports.items() for part in (flag, str(value)))]
    began_s = time.monotonic()
    process = processes.start_tidegate(words, None, os.environ)
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
