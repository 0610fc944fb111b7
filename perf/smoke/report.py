"""The report of `perf.smoke`: what the gateway adds to Triton's latency."""

from __future__ import annotations

from dataclasses import dataclass

from perf.measurement import report
from perf.measurement.markdown import figure, table

DIRECT, GATEWAY = "direct", "gateway"
WAYS = (DIRECT, GATEWAY)
CONCURRENCIES = (1, 8)


@dataclass(frozen=True, slots=True)
class Case:
    protocol: str
    concurrent: int
    way: str


@dataclass(frozen=True, slots=True)
class Run:
    p50_ms: float
    p99_ms: float
    requests_per_s: float


class Report(report.Report):
    name, title, case, run = "smoke", "What the gateway's hop costs", Case, Run

    def figures(self) -> dict[str, float]:
        return {
            f"{case.protocol}_{case.concurrent}_added_p50_ms": self._added_ms(case.protocol, case.concurrent)
            for case in self.runs
            if case.way == GATEWAY
        }

    def summary(self) -> str:
        rows = [self._row(case.protocol, case.concurrent) for case in self.runs if case.way == GATEWAY]
        return table(("protocol", "concurrent", "Triton p50 / p99 ms", "gateway p50 / p99 ms", "added p50 ms"), rows)

    def _row(self, protocol: str, concurrent: int) -> tuple[str, ...]:
        runs = [self.median(Case(protocol, concurrent, way)) for way in WAYS]
        latencies = [f"{figure(run.p50_ms)} / {figure(run.p99_ms)}" for run in runs]
        return protocol, str(concurrent), *latencies, figure(self._added_ms(protocol, concurrent))

    def _added_ms(self, protocol: str, concurrent: int) -> float:
        gateway, direct = Case(protocol, concurrent, GATEWAY), Case(protocol, concurrent, DIRECT)
        return self.over_rounds(gateway, direct, lambda own, other: own.p50_ms - other.p50_ms)
