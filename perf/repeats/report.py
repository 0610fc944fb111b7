"""The report of `perf.repeats`: what a response cache of each size does for texts that repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

NO_CACHE, ROOM_FOR_A_TENTH, SHIPPED = "none", "room for a tenth", "as shipped"
CACHES = (NO_CACHE, ROOM_FOR_A_TENTH, SHIPPED)
_HITS_AT_LEAST_PERCENT = 40.0


@dataclass(frozen=True, slots=True)
class Case:
    cache: str


@dataclass(frozen=True, slots=True)
class Run:
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    hit_ratio: float
    errors: int


class Report(report.Report):
    name, title, case, run = "repeats", "Texts that repeat", Case, Run

    def figures(self) -> dict[str, float]:
        found = {_key(case.cache): 100 * self.median(case).hit_ratio for case in self.runs if case.cache != NO_CACHE}
        found["possible_hits_percent"] = 100 * (1 - self.result.more["distinct"] / self.options["requests"])
        if {Case(SHIPPED), Case(NO_CACHE)} <= self.runs.keys():
            found["as_shipped_times_none"] = self.over_rounds(
                Case(SHIPPED), Case(NO_CACHE), lambda own, none: own.requests_per_s / none.requests_per_s
            )
        return found

    def targets(self) -> Sequence[Target]:
        return [Target(_key(cache), f"{cache}: hits, %", _HITS_AT_LEAST_PERCENT, at_least=True) for cache in (ROOM_FOR_A_TENTH, SHIPPED)]

    def summary(self) -> str:
        asked = f"{self.options['requests']:,} requests for {self.result.more['distinct']:,} texts, {self.options['callers']} callers."
        rows = [(case.cache, *_row(self.median(case))) for case in self.runs]
        return f"{asked}\n\n" + table(("cache", "requests/s", "p50 / p99 ms", "hits", "errors"), rows)


def _row(run: Run) -> tuple[str, ...]:
    return figure(run.requests_per_s), f"{figure(run.p50_ms)} / {figure(run.p99_ms)}", f"{run.hit_ratio:.1%}", f"{run.errors:g}"


def _key(cache: str) -> str:
    return f"{cache.replace(' ', '_')}_hits_percent"
