"""What `--workers`, `--gateway-cpus` and `--triton-cpus` gain: each beside one process with all CPUs, in turns within one run.

    python -m perf.processes [--rounds 5] [--seconds 2] [--connections 64] [--sizes 1536 1048576]

The model `echo` in an embedded Triton, so that the gateway is the limit. Pinned, the gateway has the first half of the CPUs and Triton
the rest. The load generator shares them, unpinned. Writes perf/results/processes.json and .md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from perf.load.echo_requests import MODEL, Echo
from perf.load.load_generators import Grpc, Http, Loaded
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.processes.report import ONE, Case, Report, Run
from perf.servers.processes import PROJECT
from perf.servers.serving import PROTOCOLS, tidegate

_WORKER_COUNT = 2
_WORKERS = ("--workers", str(_WORKER_COUNT))


def main() -> None:
    parser = harness.parser(__doc__, rounds=5, seconds=2.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--sizes", type=int, nargs="+", default=[384 * 4, 1 << 20], help="bytes of the tensor, which comes back as well")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    runs: dict[Case, list[Run]] = {}
    for tensor_bytes in arguments.sizes:
        runs |= _measure_size(Echo(tensor_bytes), arguments)
    return Result(runs)


def _measure_size(echo: Echo, arguments: argparse.Namespace) -> dict[Case, list[Run]]:
    flags = ["--model-repository", str(PROJECT / "perf" / "models"), "--load", MODEL]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-perf-")))
        generators: dict[str, Http | Grpc] = {"http": Http(echo, folder), "grpc": Grpc(echo, folder)}
        started = {name: stack.enter_context(tidegate([*flags, *more])) for name, more in _ways(sorted(os.sched_getaffinity(0))).items()}
        runs: dict[Case, Callable[[], Run]] = {}
        for protocol in PROTOCOLS:
            for name, each in started.items():
                address = each.addresses[protocol]
                echo.check(protocol, address)
                generate = partial(generators[protocol].run, address, connections=arguments.connections, duration_s=arguments.seconds)
                runs[Case(protocol, echo.tensor_bytes, name)] = partial(_run, generate)
        return interleave(runs, arguments.rounds)


def _ways(cpus: list[int]) -> dict[str, tuple[str, ...]]:
    """Flags of each gateway, as far as there are CPUs for it: pinned, each worker needs one of the gateway's half."""
    half = len(cpus) // 2
    gateways, tritons = (",".join(map(str, each)) for each in (cpus[:half], cpus[half:]))
    pinned = ("--gateway-cpus", gateways, "--triton-cpus", tritons)
    ways: dict[str, tuple[str, ...]] = {ONE: (), "two workers": _WORKERS}
    if half >= 1:
        ways["pinned"] = pinned
    if half >= _WORKER_COUNT:
        ways["two workers, pinned"] = (*_WORKERS, *pinned)
    return ways


def _run(generate: Callable[[], Loaded]) -> Run:
    loaded = generate()
    return Run(loaded.requests / loaded.seconds, loaded.p50_ms, loaded.p99_ms, loaded.errors)


if __name__ == "__main__":
    main()
