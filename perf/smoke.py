"""What the gateway's hop costs: an echo model [384 x FP32], perf_analyzer straight to Triton and through the gateway.

    python -m perf.smoke [--rounds 5] [--requests 4000]

Client, gateway and Triton share this machine's cores. Writes perf/results/smoke.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from rich.console import Console
from rich.table import Table

from control_plane.adapters.embedded_triton.installation import ensure_installed
from control_plane.adapters.perf_analyzer import Load, Measured, PerfAnalyzer
from perf.interleaved import interleave, median_of
from perf.serving import DOORS, PROJECT, serving

_CONCURRENCIES = (1, 8)


@dataclass(frozen=True, order=True)
class Case:
    door: str
    concurrency: int
    way: str
    """`direct` or `gateway`."""


def main() -> None:
    arguments = _arguments()
    cache = PROJECT / ".cache"
    analyzer = PerfAnalyzer(cache, ensure_installed(cache).libs)
    with serving([PROJECT / "perf" / "models"], ["echo"]) as addresses:
        ways: dict[Case, Callable[[], Measured]] = {}
        for door in DOORS:
            for concurrency in _CONCURRENCIES:
                for way in ("direct", "gateway"):
                    load = Load("echo", addresses[way, door], door, concurrency, ("INPUT0:384",), arguments.requests)
                    ways[Case(door, concurrency, way)] = partial(analyzer.run, load)
        results = {case: median_of(runs) for case, runs in interleave(ways, arguments.rounds).items()}
    _write(results, arguments)
    _print(results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4000, help="per run")
    return parser.parse_args()


def _write(results: dict[Case, Measured], arguments: argparse.Namespace) -> None:
    path = PROJECT / "perf" / "results" / "smoke.json"
    path.parent.mkdir(exist_ok=True)
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    rows = [{**asdict(case), **asdict(measured)} for case, measured in sorted(results.items())]
    path.write_text(json.dumps({"machine": machine, **vars(arguments), "medians": rows}, indent=1) + "\n")


def _print(results: dict[Case, Measured]) -> None:
    table = Table("door", "concurrent", "way", "p50 ms", "p99 ms", "requests/s", "p50 added", box=None)
    for case, measured in sorted(results.items()):
        direct = results[Case(case.door, case.concurrency, "direct")]
        added = f"{(measured.p50_ms - direct.p50_ms) * 1000:+.0f} us" if case.way == "gateway" else ""
        row = (f"{measured.p50_ms:.3f}", f"{measured.p99_ms:.3f}", f"{measured.throughput:.0f}", added)
        table.add_row(case.door, str(case.concurrency), case.way, *row)
    Console().print(table)


if __name__ == "__main__":
    main()
