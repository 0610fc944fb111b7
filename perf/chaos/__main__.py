"""What callers see while something dies, freezes, is slow, is full, lies or is too much, with the real Triton and Redis.

    python -m perf.chaos [NAME ...] [--scale 1.0] [--list]         # or `make chaos`

Twenty callers without retries ask over both protocols, by `/v1/embeddings`, `/v1/chat/completions`, `generate_stream` and
ModelStreamInfer; of whom six are answered piece by piece, and ten of the others send what may be computed twice. `perf.chaos.drills` has
every drill. Gateways are started as a user starts them and shared by the drills that can. Everything stays on loopback and ends
with the scenario. Disks are filled where this process may mount a small one of its own. Writes perf/results/chaos.json and .md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from perf.chaos.callers import PAUSE_S
from perf.chaos.drills import DRILLS, Drill
from perf.chaos.report import Case, Report
from perf.chaos.run import Run
from perf.chaos.scene import carry_out
from perf.chaos.sites import small_disk
from perf.chaos.sites.sites import SITES, Site, wait_until_whole
from perf.measurement import harness
from perf.measurement.report import Result

_WHOLE_S = 60.0
_TRIES = 2


def main() -> None:
    parser = harness.parser(__doc__, rounds=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of everything that lasts: 0.1 is a tenth as long")
    parser.add_argument("--pause-s", type=float, default=PAUSE_S, help="of a caller, after each answer")
    harness.carry_out_drills(Report, parser, DRILLS, _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    small_disk.try_to_enter()  # before there are threads, which would not see it
    drills = [DRILLS[name] for name in arguments.drills or DRILLS]
    runs: dict[Case, list[Run]] = {}
    more: dict[str, dict[str, object]] = {"said": {}, "not_carried_out": {}}
    for _ in range(arguments.rounds):
        for _, group in itertools.groupby(sorted(drills, key=lambda drill: list(SITES).index(drill.site)), key=lambda drill: drill.site):
            for drill, found in _on_one_site(list(group), arguments):
                if isinstance(found, str):
                    more["not_carried_out"][drill.name] = found
                else:
                    runs.setdefault(Case(drill.name), []).append(found[0])
                    more["said"][drill.name] = found[1]
    return Result(runs, more=more)


def _on_one_site(drills: list[Drill], arguments: argparse.Namespace) -> Iterator[tuple[Drill, tuple[Run, dict[str, int]] | str]]:
    """Each drill with what came of it, or why it was not carried out; the site is started anew where a drill has left it broken."""
    lasting = {"scale": arguments.scale, "pause_s": arguments.pause_s}
    with ExitStack() as ends, asyncio.Runner() as runner:
        site: Site | None = None
        for drill in drills:
            found: tuple[Run, dict[str, int]] | str = ""
            for _ in range(_TRIES):
                try:
                    if site is None:
                        harness.say(f"{drill.site} for {drill.name}")
                        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-chaos-", ignore_cleanup_errors=True)))
                        site = ends.enter_context(SITES[drill.site](folder))
                        wait_until_whole(site, _WHOLE_S)
                    harness.say(drill.name)
                    found = runner.run(carry_out(drill.act, site, callers=drill.callers, deadline_s=drill.deadline_s, **lasting))
                    break
                except (RuntimeError, TimeoutError) as exc:
                    found = str(exc)
                    site = None
                    ends.close()
            yield drill, found
            _tell(drill, found)
            if site is not None and not site.is_whole():
                site = None
                ends.close()


def _tell(drill: Drill, found: tuple[Run, dict[str, int]] | str) -> None:
    what = found if isinstance(found, str) else f"{found[0]}\n    " + "\n    ".join(f"{count} x {text}" for text, count in found[1].items())
    print(f"{drill.name}: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
