"""The report of `perf.prefetch`: how long requests wait for loads with each forecast, and what the prefetches cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from control_plane.fleet.simulation.outcome import SimulationResult
from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target
from perf.prefetch.cases import CLAIRVOYANT, NONE, OWN_TIMES, PATTERNS, TRACES

_TARGETS = (
    Target("saved_percent", f"{OWN_TIMES}, {PATTERNS}: less waiting for loads than without, %", 20.0, at_least=True),
    Target("used_percent", f"{OWN_TIMES}, {PATTERNS}: prefetches that were used, %", 50.0, at_least=True),
    Target("times_loads", f"{OWN_TIMES}, {PATTERNS}: loads, times those without", 1.1, at_least=False),
    Target("times_p99", f"{OWN_TIMES}, {PATTERNS}: p99, times that without", 1.0, at_least=False),
)


@dataclass(frozen=True, slots=True)
class Case:
    trace: str
    forecast: str


@dataclass(frozen=True, slots=True)
class Run:
    waited_s: float
    """Seconds that requests waited until their model was ready, all together."""
    loads: int
    prefetches: int
    prefetches_used: int
    p99_ms: float
    p999_ms: float
    requests: int
    refused: int

    @classmethod
    def of(cls, outcome: SimulationResult) -> Run:
        p99_ms, p999_ms = (1000 * outcome.quantile_s(part) for part in (0.99, 0.999))
        used = outcome.prefetches_used
        return cls(outcome.waited_for_loads_s, outcome.loads, outcome.prefetches, used, p99_ms, p999_ms, outcome.requests, outcome.refused)


class Report(report.Report):
    name, title, case, run = "prefetch", "Loading models ahead of demand", Case, Run

    def figures(self) -> dict[str, float]:
        if not {Case(OWN_TIMES, PATTERNS), Case(OWN_TIMES, NONE), Case(OWN_TIMES, CLAIRVOYANT)} <= self.runs.keys():
            return {}
        return {
            "saved_percent": self._saved_percent(OWN_TIMES, PATTERNS),
            "used_percent": self._used_percent(OWN_TIMES, PATTERNS),
            "times_loads": self.over_rounds(
                Case(OWN_TIMES, PATTERNS), Case(OWN_TIMES, NONE), lambda run, without: run.loads / without.loads
            ),
            "times_p99": self.over_rounds(
                Case(OWN_TIMES, PATTERNS), Case(OWN_TIMES, NONE), lambda run, without: run.p99_ms / without.p99_ms
            ),
            "clairvoyant_saved_percent": self._saved_percent(OWN_TIMES, CLAIRVOYANT),
        }

    def targets(self) -> Sequence[Target]:
        return _TARGETS

    def summary(self) -> str:
        return "\n\n".join(self._table(trace) for trace in self.names("trace"))

    def details(self) -> str:
        return (
            "Production's placement and routing, with prefetches on servers that have nothing to do. 10 ms of service, 50 ms for a load. "
            "Differences of one seed are by chance up to some percent, since each load changes all that follow: medians over the seeds. "
            "The clairvoyant knows which models are asked for within 20 load times, and decides by the same rule as the others."
        )

    def _table(self, trace: str) -> str:
        rows = [self._row(trace, forecast) for forecast in self.names("forecast") if Case(trace, forecast) in self.runs]
        head = ("", "seconds waited for loads", "saved", "loads", "prefetches", "used", "p99 ms", "p99.9 ms", "refused")
        requests = next(runs[0].requests for case, runs in self.runs.items() if case.trace == trace)
        return f"**{trace}**: {TRACES[trace]}; {requests:,.0f} requests.\n\n" + table(head, rows)

    def _row(self, trace: str, forecast: str) -> tuple[str, ...]:
        run = self.median(Case(trace, forecast))
        saved, used = ("", "") if forecast == NONE else (f"{self._saved_percent(trace, forecast):.1f} %", self._used(trace, forecast))
        return (
            forecast, figure(run.waited_s), saved, f"{run.loads:,.0f}", f"{run.prefetches:,.0f}", used, figure(run.p99_ms),
            figure(run.p999_ms), f"{run.refused:,.0f}",
        )  # fmt: skip

    def _saved_percent(self, trace: str, forecast: str) -> float:
        return self.over_rounds(Case(trace, forecast), Case(trace, NONE), lambda run, without: 100 * (1 - run.waited_s / without.waited_s))

    def _used_percent(self, trace: str, forecast: str) -> float:
        """Return the part of all seeds' prefetches that were used."""
        runs = self.runs[Case(trace, forecast)]
        return 100 * sum(run.prefetches_used for run in runs) / max(1, sum(run.prefetches for run in runs))

    def _used(self, trace: str, forecast: str) -> str:
        return f"{self._used_percent(trace, forecast):.0f} %"
