"""All scenarios, one after the other, and then the tables and figures in the documents.

    python -m perf [NAME ...] [--data FOLDER] [--rounds N] [--list]

FOLDER has published traces (see `perf/README.md`); without it all traces are this project's own. A scenario that fails does not keep the
others from running. What is printed last is how long each took.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from perf import documents
from perf.measurement.provenance import CLEAN, tree_state
from perf.scenarios import SCENARIOS, Scenario
from perf.servers.processes import PROJECT
from python_backends.runtime.machine import gpu_name

_QUIET = 0.3
"""Load average at most, for each CPU, of a machine that is said to be quiet."""


def main() -> int:
    arguments = _arguments()
    if arguments.list:
        print(*(f"{name:<14} {scenario.told}" for name, scenario in SCENARIOS.items()), sep="\n")
        return 0
    _warn()
    began_s = time.monotonic()
    outcomes = [_run(SCENARIOS[name], arguments) for name in arguments.scenarios or SCENARIOS]
    documents.renew_all()
    print(*outcomes, f"{'together':<14} {_minutes(began_s)}", sep="\n")
    return int(any("failed" in each for each in outcomes))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="perf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="NAME", choices=[[], *SCENARIOS], help=f"of {', '.join(SCENARIOS)}; all of them")
    parser.add_argument("--data", type=Path, help="a folder of published traces")
    parser.add_argument("--rounds", type=int, help="of every scenario, instead of its own number: 1 is the quickest that measures all")
    parser.add_argument("--list", action="store_true", help="say which scenarios there are")
    return parser.parse_args()


def _warn() -> None:
    """Warn of what would be held against the results afterwards."""
    if (state := tree_state()) != CLEAN:
        print(f"warning: the results will be marked, and no document may quote them: the tree is not clean ({state})", file=sys.stderr)
    if (load := os.getloadavg()[0] / len(os.sched_getaffinity(0))) > _QUIET:
        print(f"warning: this machine is not quiet: a load average of {load:.1f} for each CPU", file=sys.stderr)


def _run(scenario: Scenario, arguments: argparse.Namespace) -> str:
    """How long it took, or that it failed, or why it did not begin."""
    if scenario.needs_gpu and gpu_name() is None:
        return f"{scenario.name:<14} skipped: it needs an NVIDIA GPU"
    print(f"==> {scenario.name}: {scenario.told}", file=sys.stderr, flush=True)
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-m", scenario.module, *scenario.flags(arguments.data, arguments.rounds)], cwd=PROJECT)
    return f"{scenario.name:<14} {_minutes(began_s)}{' failed' if done.returncode else ''}"


def _minutes(began_s: float) -> str:
    return f"{(time.monotonic() - began_s) / 60:5.1f} minutes"


if __name__ == "__main__":
    sys.exit(main())
