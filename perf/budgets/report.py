"""The report of `perf.budgets`: who keeps a latency budget, and how accurate his answers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

DIAL, LARGE, SMALL = "within the budget", "the accurate model alone", "the fast model alone"
WAYS = (DIAL, LARGE, SMALL)
LARGE_PER_S = 50.0
"""Requests a second that two instances of the accurate model can answer, at 40 ms a request."""
LOADS = (0.5, 0.9, 2.0, 5.0)
"""Rates of requests, as multiples of what the accurate model can answer."""
_LITTLE = 0.5


@dataclass(frozen=True, slots=True)
class Case:
    way: str
    load: float


@dataclass(frozen=True, slots=True)
class Run:
    within: float
    """Part of the requests that were answered within the budget (0 to 1)."""
    accurate: float
    """Part of the requests that the accurate model answered."""
    p50_ms: float
    p99_ms: float
    """Percentile of the latencies of good answers, as `p50_ms` is."""
    refused: float
    """Part of the requests that were not answered."""


class Report(report.Report):
    name, title, case, run = "budgets", "Latency as a dial", Case, Run

    def figures(self) -> dict[str, float]:
        loads = sorted({case.load for case in self.runs if case.way == DIAL})
        of_dial = {load: self.median(Case(DIAL, load)) for load in loads}
        found = {"within_least": min(run.within for run in of_dial.values())} if of_dial else {}
        if _LITTLE in of_dial:
            found["accurate_at_half"] = of_dial[_LITTLE].accurate
        if busy := [load for load in loads if load > 1]:
            found["accurate_of_possible"] = min(of_dial[load].accurate * load for load in busy)
            found["within_of_large"] = max(self.median(Case(LARGE, load)).within for load in busy)
        return found

    def targets(self) -> Sequence[Target]:
        return [
            Target("within_least", "answers within the budget, of all requests, at the worst load", 0.9, at_least=True),
            Target("accurate_at_half", "answers of the accurate model at half of its load", 0.95, at_least=True),
            Target("accurate_of_possible", "beyond its load: its answers, of what it can do", 0.7, at_least=True),
        ]

    def summary(self) -> str:
        head = ("load", "", "within the budget", "by the accurate model", "p50 ms", "p99 ms", "not answered")
        return table(head, [self._row(case) for case in sorted(self.runs, key=lambda case: (case.load, WAYS.index(case.way)))])

    def _row(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        parts = [f"{part:.1%}" for part in (run.within, run.accurate, run.refused)]
        return f"{case.load:g}x", case.way, *parts[:2], figure(run.p50_ms), figure(run.p99_ms), parts[2]
