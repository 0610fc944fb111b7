"""The report of `perf.processes`: throughput and p99 of each way to use the CPUs, beside one process with all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perf.measurement import report
from perf.measurement.markdown import figure, table

ONE = "one process"


@dataclass(frozen=True, slots=True)
class Case:
    protocol: str
    tensor_bytes: int
    way: str


@dataclass(frozen=True, slots=True)
class Run:
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    errors: int


class Report(report.Report):
    name, title, case, run = "processes", "What worker processes and CPUs of their own gain", Case, Run
    programs = ("wrk", "h2load")

    def figures(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for case in self.runs:
            if case.way != ONE:
                found[_key(case, "throughput")], found[_key(case, "p99")] = self._throughput(case), self._p99(case)
        return found

    def summary(self) -> str:
        head = ("", "tensor", "requests/s", "of one process", "p50 ms", "p99 ms", "of one process", "errors")
        return table(head, [self._row(case) for case in self.runs])

    def _row(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        sizes = f"{case.protocol}, {case.way}", f"{case.tensor_bytes / 1024:g} KB"
        figures = (run.requests_per_s, self._throughput(case), run.p50_ms, run.p99_ms, self._p99(case))
        return *sizes, *map(figure, figures), f"{run.errors:g}"

    def _throughput(self, case: Case) -> float:
        return self.over_rounds(case, replace(case, way=ONE), lambda own, one: own.requests_per_s / one.requests_per_s)

    def _p99(self, case: Case) -> float:
        return self.over_rounds(case, replace(case, way=ONE), lambda own, one: own.p99_ms / one.p99_ms)


def _key(case: Case, what: str) -> str:
    return "_".join((case.protocol, str(case.tensor_bytes), *case.way.replace(",", "").split(), what))
