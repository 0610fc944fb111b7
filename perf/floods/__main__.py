"""What floods cost a caller who does no harm: each beside one who asks for small inferences, through the gateway to the real Triton.

    python -m perf.floods [--seconds 1.5] [--rounds 3] [--only TEXT]

Authentication is on; a flood has a key where the table says so. Before each flood the bystander is measured alone. A request that is
refused or not answered in 5 s counts as that. Everything stays on this machine's loopback, and ends with the scenario.
Writes perf/results/floods.json and .md.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from control_plane.domain.tenant import Tenant
from perf.floods.bystander import Bystander
from perf.floods.flooder import Flooded, give_way
from perf.floods.report import ALONE, Case, Report, Run
from perf.floods.table import FLOODS, flood_for
from perf.keys import make_keys
from perf.processes import PROJECT, exit_on_sigterm
from perf.serving import Tidegate, attached
from perf.upstreams import triton

_HARMLESS, _HARMFUL = "harmless", "harmful"
_KEYS_ARE_KNOWN_S = 1.0
_LEAD_S = 0.4
"""Of the flood, before it counts."""
_REST_S = 0.3
"""After a flood, for what is left of it."""


def main() -> None:
    arguments = _arguments()
    exit_on_sigterm()
    results: dict[Case, list[Run]] = {Case(ALONE): []}
    flooded: dict[str, Flooded] = {}
    with triton(("echo", "swallow")) as addresses, attached(addresses, "--authentication") as gateway, _flooder() as flooder:
        keys = make_keys(gateway.state, Tenant(_HARMLESS), Tenant(_HARMFUL))
        time.sleep(_KEYS_ARE_KNOWN_S)
        names = [name for name in FLOODS if arguments.only in name]
        for number, name in enumerate(names * arguments.rounds):
            print(f"{number + 1} of {len(names) * arguments.rounds}: {name}", end="\033[K\r", file=sys.stderr, flush=True)
            alone, beside, flooded[name] = _measure(flooder, gateway, name, keys, arguments.seconds)
            results[Case(ALONE)].append(alone)
            results.setdefault(Case(name), []).append(beside)
            time.sleep(_REST_S)
    print(end="\033[K", file=sys.stderr, flush=True)
    report = Report(results, [], arguments, flooded)
    report.write()
    report.print()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each flood, and without it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="floods whose name has this in it")
    parser.add_argument("--output", type=type(PROJECT), default=PROJECT / "perf" / "results")
    return parser.parse_args()


def _flooder() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=give_way)


def _measure(flooder: ProcessPoolExecutor, gateway: Tidegate, name: str, keys: dict[str, str], seconds: float) -> tuple[Run, Run, Flooded]:
    """The bystander without the flood, and beside it; and what came of the flood."""
    flood = FLOODS[name]
    bystander = Bystander(gateway.addresses, keys[_HARMLESS])
    try:
        alone = bystander.measure(seconds)
        flooding = flooder.submit(
            flood_for, name, gateway.addresses[flood.door], keys[_HARMFUL] if flood.has_key else "", seconds + 2 * _LEAD_S
        )
        time.sleep(_LEAD_S)
        beside = bystander.measure(seconds)
    finally:
        bystander.close()
    return alone, beside, flooding.result()


if __name__ == "__main__":
    sys.exit(main())
