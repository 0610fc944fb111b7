"""The report of `perf.streaming`: what a bound on a model's weights in memory saves, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

WHOLE = 0
"""MiB of a model without a bound."""
BUDGETS = (WHOLE, 32, 8)
SHORT, BATCH = "1 text of 16 tokens", "32 texts of 16 tokens"


@dataclass(frozen=True, slots=True)
class Case:
    mib: int
    """MiB of the model's weights that are in memory at a time; `WHOLE`: all of them."""
    asked: str


@dataclass(frozen=True, slots=True)
class Run:
    p50_ms: float
    resident_mib: float
    """The most that the model's process has held so far."""
    difference: float
    """The largest between a number of an answer and the whole model's."""


class Report(report.Report):
    name, title, case, run = "streaming", "Weights in a part of their memory", Case, Run

    def figures(self) -> dict[str, float]:
        least = min((case.mib for case in self.runs if case.mib != WHOLE), default=WHOLE)
        times = {
            f"{name}_times": self.over_rounds(
                Case(least, asked), Case(WHOLE, asked), lambda streamed, whole: streamed.p50_ms / whole.p50_ms
            )
            for name, asked in (("short", SHORT), ("batch", BATCH))
        }
        found = times | {
            "resident_part": self.over_rounds(
                Case(least, BATCH), Case(WHOLE, BATCH), lambda part, whole: part.resident_mib / whole.resident_mib
            ),
            "difference": max(run.difference for runs in self.runs.values() for run in runs),
        }
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def targets(self) -> Sequence[Target]:
        return [
            Target(
                "resident_part", "most memory of the process with 8 MiB of weights, as a part of the whole model's", 0.75, at_least=False
            ),
            Target("difference", "largest difference of an answer's numbers", 1e-5, at_least=False),
            Target("batch_times", f"{BATCH}, times what the whole model takes", 2.0, at_least=False),
            Target("short_times", f"{SHORT}, times what the whole model takes", 4.0, at_least=False),
        ]

    def summary(self) -> str:
        return table(("MiB of weights", "asked", "p50 ms", "most memory MiB", "difference"), map(self._row, self.runs))

    def _row(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        held = "all" if case.mib == WHOLE else str(case.mib)
        return held, case.asked, figure(run.p50_ms), figure(run.resident_mib), f"{run.difference:.1g}"
