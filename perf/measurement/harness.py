"""What all scenarios have in common: their options, and one run from the first look at the tree to the written result.

`--rounds` and `--seconds` make any of them short; tests run each for seconds like that (`tests/e2e/perf/test_perf*.py`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.markdown import Markdown

from perf.measurement.provenance import provenance
from perf.measurement.report import RESULTS, Report, Result
from perf.servers.processes import exit_on_sigterm, require_programs

Measure = Callable[[argparse.Namespace], Result]
Draw = Callable[[Any, Path], None]


class Drill(Protocol):
    """Fault or load that a scenario brings about while callers are answered."""

    @property
    def name(self) -> str: ...

    @property
    def done(self) -> str:
        """Description of it, one line."""


def parser(explained: str | None, *, rounds: int | None = None, seconds: float | None = None) -> argparse.ArgumentParser:
    """The options that every scenario has; a scenario without rounds, or whose runs have no length, has no such option."""
    program = f"python -m perf.{Path(sys.argv[0]).parent.name}"
    made = argparse.ArgumentParser(prog=program, description=explained, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds is not None:
        made.add_argument("--rounds", type=int, default=rounds, help="how often each case is measured, in turns with the others")
    if seconds is not None:
        made.add_argument("--seconds", type=type(seconds), default=seconds, help="of one case in one round")
    made.add_argument("--output", type=Path, default=RESULTS, help="folder for the result")
    return made


def carry_out(report: type[Report], arguments: argparse.Namespace, measure: Measure, draw: Draw | None = None) -> None:
    """Measure, write `NAME.json`, `NAME.md` and the plot, and print the summary.

    Raises SystemExit when a program that the scenario runs is not installed.
    """
    require_programs(report.programs)
    exit_on_sigterm()
    measured, began_s = provenance(), time.monotonic()
    found = measure(arguments)
    say("")
    took = {"command": _command(report.module(), sys.argv[1:]), "took_s": round(time.monotonic() - began_s, 1)}
    made = report(Result(found.runs, found.sources, found.more, _options(arguments), {**took, **measured}))
    made.write(arguments.output)
    if draw is not None:
        draw(made, arguments.output / f"{report.name}.{report.plot}")
    Console(width=140).print(Markdown(made.markdown()))


def carry_out_drills(report: type[Report], options: argparse.ArgumentParser, drills: Mapping[str, Drill], measure: Measure) -> None:
    """Carry out the drills that are named on the command line, or all of them; `--list` says which there are."""
    options.add_argument("drills", nargs="*", metavar="NAME", choices=[[], *drills], help="of those that `--list` shows; all of them")
    options.add_argument("--list", action="store_true", help="say which drills there are")
    arguments = options.parse_args()
    if arguments.list:
        print(*(f"{drill.name:<32} {drill.done}" for drill in drills.values()), sep="\n")
    else:
        carry_out(report, arguments, measure)


def say(what: str) -> None:
    """Progress: a line that the next one replaces."""
    print(what, end="\033[K\r", file=sys.stderr, flush=True)


def _command(module: str, arguments: Sequence[str]) -> str:
    """Return the command as it could be given elsewhere: of files only their names."""
    names = (Path(each).name if Path(each).exists() else each for each in arguments)
    return " ".join(["python -m", module, *names])


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: _plain(value) for name, value in vars(arguments).items() if name != "output"}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return value.name
    return [_plain(each) for each in value] if isinstance(value, list) else value
