"""The report of `perf.cache_faults`: p99 and errors beside a second level that fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target
from perf.repeats.report import Run

NONE = "none"
_P99_AT_MOST = 1.2
"""Times the one without a second level."""


@dataclass(frozen=True, slots=True)
class Case:
    second_level: str


class Report(report.Report):
    name, title, case, run = "cache-faults", "A second level of the cache that fails", Case, Run
    programs = ("redis-server",)

    def figures(self) -> dict[str, float]:
        p99s = {_key(case): self._p99_times(case) for case in self._others()}
        return p99s | {"errors": sum(run.errors for runs in self.runs.values() for run in runs)}

    def targets(self) -> Sequence[Target]:
        p99s = [Target(_key(case), f"{case.second_level}: p99 / none's", _P99_AT_MOST, at_least=False) for case in self._others()]
        return [*p99s, Target("errors", "errors", 0, at_least=False)]

    def summary(self) -> str:
        rows = [self._row(case) for case in self.runs]
        return table(("second level", "requests/s", "p50 ms", "p99 ms", "p99 / none's", "hits"), rows)

    def _row(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        figures = (run.requests_per_s, run.p50_ms, run.p99_ms, self._p99_times(case))
        return case.second_level, *map(figure, figures), f"{run.hit_ratio:.1%}"

    def _others(self) -> list[Case]:
        return [case for case in self.runs if case.second_level != NONE and Case(NONE) in self.runs]

    def _p99_times(self, case: Case) -> float:
        return self.over_rounds(case, Case(NONE), lambda own, none: own.p99_ms / none.p99_ms)


def _key(case: Case) -> str:
    return f"{case.second_level.replace(' ', '_')}_p99_times"
