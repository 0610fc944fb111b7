"""What floods cost a caller who does no harm: each beside one who asks for small inferences, through the gateway to the real Triton.

    python -m perf.floods [--seconds 1.5] [--rounds 3] [--only TEXT]

Authentication is on; a flood has a key where the table says so. Before each flood the bystander is measured alone. A request that is
refused or not answered in 5 s counts as that. Everything stays on this machine's loopback, and ends with the scenario.
Writes perf/results/floods.json and .md.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from control_plane.objects.domain.tenant import Tenant
from perf.floods.bystander import Bystander
from perf.floods.flooder import Flooded, give_way
from perf.floods.report import ALONE, Case, Report, Run
from perf.floods.table import FLOODS, flood_for
from perf.load.keys import make_keys
from perf.measurement import harness
from perf.measurement.report import Result
from perf.servers.serving import Tidegate, attached
from perf.servers.upstreams import triton

_HARMLESS, _HARMFUL = "harmless", "harmful"
_KEYS_ARE_KNOWN_S = 1.0
_LEAD_S = 0.4
"""Of the flood, before it counts."""
_REST_S = 0.3
"""After a flood, for what is left of it."""


def main() -> None:
    parser = harness.parser(__doc__, rounds=3, seconds=1.5)
    parser.add_argument("--only", default="", help="floods whose name has this in it")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    runs: dict[Case, list[Run]] = {Case(ALONE): []}
    flooded: dict[str, dict[str, Any]] = {}
    names = [name for name in FLOODS if arguments.only in name]
    with triton(("echo", "swallow")) as addresses, attached(addresses, "--authentication") as gateway, _flooder() as flooder:
        keys = make_keys(gateway.state, Tenant(_HARMLESS), Tenant(_HARMFUL))
        time.sleep(_KEYS_ARE_KNOWN_S)
        for number, name in enumerate(names * arguments.rounds):
            harness.say(f"{number + 1} of {len(names) * arguments.rounds}: {name}")
            alone, beside, flooded[name] = _beside(flooder, gateway, name, keys, arguments.seconds)
            runs[Case(ALONE)].append(alone)
            runs.setdefault(Case(name), []).append(beside)
            time.sleep(_REST_S)
    return Result(runs, more={"floods": flooded})


def _came_of(flooded: Flooded, bystander: Bystander) -> dict[str, Any]:
    return {
        "sent_mib": round(flooded.sent_bytes / 2**20, 1),
        "connections": flooded.connections,
        "refusals": dict(flooded.refusals),
        "bystander_refusals": dict(bystander.refusals),
    }


def _flooder() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=give_way)


def _beside(
    flooder: ProcessPoolExecutor, gateway: Tidegate, name: str, keys: dict[str, str], seconds: float
) -> tuple[Run, Run, dict[str, Any]]:
    """The bystander without the flood, and beside it; and what came of the flood."""
    flood = FLOODS[name]
    bystander = Bystander(gateway.addresses, keys[_HARMLESS])
    try:
        alone = bystander.measure(seconds)
        if bystander.refusals:
            raise RuntimeError(f"alone, before {name}, the one who does no harm is refused: {dict(bystander.refusals)}")
        flooding = flooder.submit(
            flood_for, name, gateway.addresses[flood.protocol], keys[_HARMFUL] if flood.has_key else "", seconds + 2 * _LEAD_S
        )
        time.sleep(_LEAD_S)
        beside = bystander.measure(seconds)
    finally:
        bystander.close()
    return alone, beside, _came_of(flooding.result(), bystander)


if __name__ == "__main__":
    main()
