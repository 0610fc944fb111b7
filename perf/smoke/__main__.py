"""What the gateway's hop costs: an echo model [384 x FP32], perf_analyzer straight to Triton and through the gateway.

    python -m perf.smoke [--rounds 5] [--requests 4000]

Client, gateway and Triton share this machine's cores. Writes perf/results/smoke.json and .md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from control_plane.triton.embedded.installation import ensure_installed
from control_plane.tuning.adapters.perf_analyzer import AnalyzerRun, PerfAnalyzer, RunResult
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.servers.processes import PROJECT
from perf.servers.serving import PROTOCOLS, serving
from perf.smoke.report import CONCURRENCIES, WAYS, Case, Report, Run


def main() -> None:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--requests", type=int, default=4000, help="of one case in one round")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    cache = PROJECT / ".cache"
    analyzer = PerfAnalyzer(cache, ensure_installed(cache).libs)
    with serving([PROJECT / "perf" / "models"], ["echo"]) as addresses:
        ways: dict[Case, Callable[[], Run]] = {}
        for protocol in PROTOCOLS:
            for concurrent in CONCURRENCIES:
                for way in WAYS:
                    load = AnalyzerRun("echo", addresses[way, protocol], protocol, concurrent, ("INPUT0:384",), arguments.requests)
                    ways[Case(protocol, concurrent, way)] = partial(_run, analyzer, load)
        return Result(interleave(ways, arguments.rounds))


def _run(analyzer: PerfAnalyzer, load: AnalyzerRun) -> Run:
    measured: RunResult = analyzer.run(load)
    return Run(measured.p50_ms, measured.p99_ms, measured.throughput)


if __name__ == "__main__":
    main()
