"""What floods cost a caller who does no harm: each beside one who asks for small inferences, through the gateway to the real Triton.

    python -m perf.floods [--seconds 1] [--rounds 3] [--only TEXT ...]

Authentication is on; a flood has a key where the table says so. Before every eighth flood the bystander is measured alone. A request
that is refused or not answered in 5 s counts as that. Everything stays on this machine's loopback, and ends with the scenario.
Writes perf/results/floods.json and .md.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from control_plane.objects.domain.tenant import Tenant
from perf.floods.bystander import Bystander
from perf.floods.flooder import Flooded
from perf.floods.report import ALONE, Case, Report, Run
from perf.floods.table import FLOODS, flood_for
from perf.load.keys import make_keys
from perf.measurement import harness
from perf.measurement.report import Result
from perf.servers.serving import Tidegate, attached
from perf.servers.upstreams import triton
from perf.servers.yielding import yielding

_HARMLESS, _HARMFUL = "harmless", "harmful"
_KEYS_ARE_KNOWN_S = 1.0
_ALONE_EVERY = 8
"""Floods from one look at the bystander alone to the next, which also shows that the floods before left nothing behind."""
_LEAD_S = 0.25
"""Seconds for which the flood runs before the bystander is measured."""
_TAIL_S = 0.1
"""Seconds for which the flood goes on after that, so that it does not end while the bystander is measured."""
_REST_S = 0.05
"""After a flood, for what is left of it."""


def main() -> None:
    parser = harness.parser(__doc__, rounds=3, seconds=1.0)
    parser.add_argument("--only", nargs="*", default=[""], metavar="TEXT", help="floods whose name has one of these in it")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    runs: dict[Case, list[Run]] = {Case(ALONE): []}
    flooded: dict[str, dict[str, Any]] = {}
    names = [name for name in FLOODS if any(text in name for text in arguments.only)]
    with triton(("echo", "swallow")) as addresses, attached(addresses, "--authentication") as gateway, yielding(1) as flooder:
        keys = make_keys(gateway.state, Tenant(_HARMLESS), Tenant(_HARMFUL))
        time.sleep(_KEYS_ARE_KNOWN_S)
        with contextlib.closing(Bystander(gateway.addresses, keys[_HARMLESS])) as bystander:
            for number, name in enumerate(names * arguments.rounds):
                harness.say(f"{number + 1} of {len(names) * arguments.rounds}: {name}")
                if number % _ALONE_EVERY == 0:
                    runs[Case(ALONE)].append(_alone(bystander, name, arguments.seconds))
                beside, flooded[name] = _beside(flooder, gateway, bystander, name, keys[_HARMFUL], arguments.seconds)
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


def _alone(bystander: Bystander, name: str, seconds: float) -> Run:
    """The bystander without a flood."""
    bystander.refusals.clear()
    alone = bystander.measure(seconds)
    if bystander.refusals:
        raise RuntimeError(f"alone, before {name}, the one who does no harm is refused: {dict(bystander.refusals)}")
    return alone


def _beside(
    flooder: ProcessPoolExecutor, gateway: Tidegate, bystander: Bystander, name: str, key: str, seconds: float
) -> tuple[Run, dict[str, Any]]:
    """The bystander beside the flood, and what came of the flood."""
    flood = FLOODS[name]
    bystander.refusals.clear()
    flooding = flooder.submit(flood_for, name, gateway.addresses[flood.protocol], key if flood.has_key else "", _LEAD_S + seconds + _TAIL_S)
    time.sleep(_LEAD_S)
    beside = bystander.measure(seconds)
    return beside, _came_of(flooding.result(), bystander)


if __name__ == "__main__":
    main()
