"""The report of `perf.chaos_jobs`: of each drill of jobs how many were lost, answered twice or otherwise, or left something."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perf.chaos_jobs.drills import DRILLS, Drill
from perf.chaos_jobs.run import Run
from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

_WRONGS = {
    "lost": "lost",
    "unanswered": "without an answer",
    "doubled": "answered twice",
    "changed": "answers that changed",
    "wrong": "answers unlike the synchronous one",
    "miscounted": "requests charged wrongly",
    "left_behind": "tickets, files and records left",
}
_IN_ALL = "wrong_in_all"


@dataclass(frozen=True, slots=True)
class Case:
    drill: str
    """A name of `drills.DRILLS`."""


class Report(report.Report):
    name, title, case, run = "chaos-jobs", "Asynchronous jobs, whatever dies", Case, Run
    programs = ("redis-server", "rabbitmq-server")

    def figures(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for drill in self._drills():
            run = self.median(Case(drill.name))
            found |= {f"{drill.key}_{name}": float(getattr(run, name)) for name in Run.__dataclass_fields__}
            found[f"{drill.key}_{_IN_ALL}"] = float(_wrongs(run))
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def targets(self) -> Sequence[Target]:
        told = "jobs, lines and files that are lost, twice, wrong or left"
        return [Target(f"{drill.key}_{_IN_ALL}", f"{drill.name}: {told}", 0, at_least=False) for drill in self._drills()]

    def summary(self) -> str:
        head = ("drill", "jobs", "lines of batches", "faults", *_WRONGS.values(), "rounded otherwise", "forgotten", "most attempts", "s")
        return table(head, [self._row(drill) for drill in self._drills()])

    def details(self) -> str:
        blocks = []
        for name, done in self.result.more.get("faults", {}).items():
            each = "\n".join(f"* {count} x {fault}" for fault, count in done.items())
            said = "\n".join(f"* `{text.replace('`', chr(39))}`" for text in self.result.more.get("said", {}).get(name, ()))
            blocks.append("\n\n".join(filter(None, (f"### {name}", DRILLS[name].done, each, said))))
        return "\n\n".join(["## What was done, and what was wrong", *blocks]) if blocks else ""

    def verdict(self, drill: Drill) -> str:
        """Return a drill's row in the table of drills (docs/operations/faults.md); empty for one that was not measured."""
        if Case(drill.name) not in self.runs:
            return ""
        run = self.median(Case(drill.name))
        return "**not met**" if _wrongs(run) else "met"

    def measured(self, drill: Drill) -> str:
        """Return what was measured in a drill, for the same table; empty where it was not."""
        run = self.median(Case(drill.name))
        if run is None:
            return ""
        wrong = "; ".join(f"{getattr(run, name):.0f} {told}" for name, told in _WRONGS.items() if getattr(run, name))
        forgotten = f", {run.forgotten:.0f} of later ones forgotten" if run.forgotten else ""
        faults = "1 fault" if run.faults == 1 else f"{run.faults:.0f} faults"
        return f"{run.accepted:,.0f} jobs and {run.lines:,.0f} lines, {faults}: {wrong or 'each answered once'}{forgotten}"

    def _drills(self) -> list[Drill]:
        return [DRILLS[case.drill] for case in self.runs if case.drill in DRILLS]

    def _row(self, drill: Drill) -> tuple[str, ...]:
        run = self.median(Case(drill.name))
        counts = (
            run.accepted,
            run.lines,
            run.faults,
            *(getattr(run, name) for name in _WRONGS),
            run.rounded,
            run.forgotten,
            run.longest_attempts,
        )
        return drill.name, *(f"{count:,.0f}" for count in counts), figure(run.seconds)


def _wrongs(run: Run) -> float:
    return sum(getattr(run, name) for name in _WRONGS)


def table_of_drills(found: Report | None) -> str:
    """Every drill, measured or not."""
    head = ("what", "done", "callers see", "measured", "")
    rows = (
        (drill.name, drill.done, drill.seen, *(("", "") if found is None else (found.measured(drill), found.verdict(drill))))
        for drill in DRILLS.values()
    )
    return table(head, rows)
