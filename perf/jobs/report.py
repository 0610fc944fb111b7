"""The report of `perf.jobs`: interactive requests without and with jobs beside them, what the jobs get, and what one costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

ALONE, BESIDE = "interactive, alone", "interactive, beside jobs"
JOBS, CALLERS = "jobs, alone", "as many synchronous requests"
SMALL_JOBS, SMALL_CALLERS = "small jobs", "small synchronous requests"
ACCEPTING = "jobs handed in"
UPLOAD = "interactive, beside an upload"
BATCH, TEXTS = "one batch of texts", "32 callers of /v1/embeddings"


@dataclass(frozen=True, slots=True)
class Case:
    what: str


@dataclass(frozen=True, slots=True)
class Run:
    per_s: float
    """Requests or jobs a second."""
    p50_ms: float = math.nan
    p99_ms: float = math.nan
    jobs_per_s: float = math.nan
    """Of the jobs beside them."""
    cpu_us: float = math.nan
    """The gateway's CPU for each."""
    errors: int = 0
    memory_mib: float = math.nan
    """What the gateway has more at most."""


class Report(report.Report):
    name, title, case, run = "jobs", "Asynchronous jobs beside callers who wait", Case, Run

    def figures(self) -> dict[str, float]:
        def ratio(what: str, other: str, name: str) -> float:
            return self.over_rounds(Case(what), Case(other), lambda one, two: getattr(one, name) / getattr(two, name))

        found = {
            "interactive_p99_times": ratio(BESIDE, ALONE, "p99_ms"),
            "of_what_was_idle": self._of_what_was_idle(),
            "of_an_ungated_run": ratio(JOBS, CALLERS, "per_s"),
            "upload_p99_times": ratio(UPLOAD, ALONE, "p99_ms"),
            "upload_memory_mib": self._upload_memory_mib(),
            "accepting_p99_ms": self._accepting_p99_ms(),
            "cpu_times": ratio(SMALL_JOBS, SMALL_CALLERS, "cpu_us"),
            "batch_times": ratio(BATCH, TEXTS, "per_s"),
            "errors": float(sum(run.errors for runs in self.runs.values() for run in runs)),
        }
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def targets(self) -> Sequence[Target]:
        return (
            Target("interactive_p99_times", "interactive p99 beside jobs, times that alone", 1.2, at_least=False),
            Target("of_what_was_idle", "jobs beside interactive requests, of what these leave idle", 0.8, at_least=True),
            Target("of_an_ungated_run", "jobs alone, of 32 synchronous callers' throughput", 0.95, at_least=True),
            Target("upload_p99_times", "interactive p99 beside an upload of 200 MB, times that alone", 1.2, at_least=False),
            Target("upload_memory_mib", "memory that the upload adds to the gateway, MiB", 32.0, at_least=False),
            Target("accepting_p99_ms", "accepting a job, p99, ms", 20.0, at_least=False),
            Target("cpu_times", "the gateway's CPU for a small job, times a synchronous request's", 3.0, at_least=False),
            Target("batch_times", "texts of one batch, of 32 synchronous callers' throughput", 0.9, at_least=True),
            Target("errors", "errors", 0, at_least=False),
        )

    def summary(self) -> str:
        rows = [(case.what, *map(_cell, self._cells(self.median(case)))) for case in self.runs]
        return table(
            ("", "a second", "p50 ms", "p99 ms", "jobs a second beside them", "the gateway's CPU us each", "MiB more", "errors"), rows
        )

    def _cells(self, run: Run) -> tuple[float, ...]:
        return run.per_s, run.p50_ms, run.p99_ms, run.jobs_per_s, run.cpu_us, run.memory_mib, run.errors

    def _of_what_was_idle(self) -> float:
        """Interactive requests leave what the same number of synchronous ones would have needed to fill the server."""
        share = self.result.more.get("interactive_share", math.nan)
        return self.over_rounds(Case(BESIDE), Case(JOBS), lambda beside, jobs: beside.jobs_per_s / (jobs.per_s * (1 - share)))

    def _upload_memory_mib(self) -> float:
        return max((run.memory_mib for run in self.runs.get(Case(UPLOAD), ())), default=math.nan)

    def _accepting_p99_ms(self) -> float:
        run = self.median(Case(ACCEPTING))
        return math.nan if run is None else float(run.p99_ms)


def _cell(value: float) -> str:
    return "" if math.isnan(value) else figure(value)
