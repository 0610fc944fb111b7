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
SPIKE = "interactive, beside a spike of jobs"
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
    """Throughput of the jobs beside the callers."""
    cpu_us: float = math.nan
    """The gateway's CPU for each."""
    busy_cpus: float = math.nan
    """CPUs of the machine that somebody used meanwhile."""
    idle_cpus: float = math.nan
    errors: int = 0
    memory_mib: float = math.nan
    """What the gateway has more at most."""
    accepted: int = 0
    """Jobs of a spike that were accepted; the others were refused with 429 and when to come again."""
    refused: int = 0
    accepting_p99_ms: float = math.nan
    drained_s: float = math.nan
    """From the end of a spike to that of its last job."""
    lost: int = 0
    """Jobs of a spike that were accepted and have no result in the end."""


class Report(report.Report):
    name, title, case, run = "jobs", "Asynchronous jobs beside callers who wait", Case, Run

    def figures(self) -> dict[str, float]:
        def ratio(what: str, other: str, name: str) -> float:
            return self.over_rounds(Case(what), Case(other), lambda one, two: getattr(one, name) / getattr(two, name))

        found = {
            "interactive_p99_times": ratio(BESIDE, ALONE, "p99_ms"),
            "of_what_was_idle": self._of_what_was_idle(),
            "of_the_idle_cpus": self._of_the_idle_cpus(),
            "of_an_ungated_run": ratio(JOBS, CALLERS, "per_s"),
            "upload_p99_times": ratio(UPLOAD, ALONE, "p99_ms"),
            "upload_memory_mib": self._upload_memory_mib(),
            "accepting_p99_ms": self._accepting_p99_ms(),
            "cpu_times": ratio(SMALL_JOBS, SMALL_CALLERS, "cpu_us"),
            "batch_times": ratio(BATCH, TEXTS, "per_s"),
            "spike_p99_times": self._spike_p99_times(),
            "spike_accepting_p99_ms": self._of_spike("accepting_p99_ms"),
            "spike_drained_s": self._of_spike("drained_s"),
            "spike_lost": self._of_spike("lost"),
            "errors": float(sum(run.errors for runs in self.runs.values() for run in runs)),
        }
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def targets(self) -> Sequence[Target]:
        return (
            Target("interactive_p99_times", "interactive p99 beside jobs, times that alone", 1.2, at_least=False),
            Target("of_what_was_idle", "jobs beside interactive requests, of what these leave idle", 0.8, at_least=True),
            Target(
                "of_the_idle_cpus", "jobs beside interactive requests, of what the CPUs compute that these leave idle", 0.8, at_least=True
            ),
            Target("of_an_ungated_run", "jobs alone, of 32 synchronous callers' throughput", 0.95, at_least=True),
            Target("upload_p99_times", "interactive p99 beside an upload of 200 MB, times that alone", 1.2, at_least=False),
            Target("upload_memory_mib", "memory that the upload adds to the gateway, MiB", 32.0, at_least=False),
            Target("accepting_p99_ms", "accepting a job, p99, ms", 20.0, at_least=False),
            Target("cpu_times", "the gateway's CPU for a small job, times a synchronous request's", 3.0, at_least=False),
            Target("batch_times", "texts of one batch, of 32 synchronous callers' throughput", 0.9, at_least=True),
            Target("spike_p99_times", "interactive p99 beside a spike of jobs, times that alone", 1.2, at_least=False),
            Target("spike_accepting_p99_ms", "accepting a job of the spike that is not refused politely, p99, ms", 20.0, at_least=False),
            Target("spike_lost", "jobs of the spike that were accepted and lost", 0, at_least=False),
            Target("errors", "errors", 0, at_least=False),
        )

    def summary(self) -> str:
        rows = [(case.what, *map(_cell, self._cells(self.median(case)))) for case in self.runs]
        cases = table(
            (
                "",
                "a second",
                "p50 ms",
                "p99 ms",
                "jobs a second beside them",
                "the gateway's CPU us each",
                "idle CPUs",
                "MiB more",
                "errors",
            ),
            rows,
        )
        spike = self.median(Case(SPIKE))
        return cases if spike is None else f"{cases}\n\n{self._spike_told(spike)}"

    def _spike_told(self, spike: Run) -> str:
        seconds, drained_s = self.result.options.get("spike_seconds", math.nan), figure(spike.drained_s)
        return (
            f"The spike has ten times the jobs that can be computed, for {figure(seconds)} s: {figure(spike.accepted)} were accepted"
            f" (p99 {figure(spike.accepting_p99_ms)} ms), {figure(spike.refused)} refused with 429 and `Retry-After`. The last of"
            f" those that were accepted ended {drained_s} s after it; {figure(spike.lost)} of them were lost."
        )

    def _cells(self, run: Run) -> tuple[float, ...]:
        return run.per_s, run.p50_ms, run.p99_ms, run.jobs_per_s, run.cpu_us, run.idle_cpus, run.memory_mib, run.errors

    def _of_what_was_idle(self) -> float:
        """Interactive requests leave what the same number of synchronous ones would have needed to fill the server."""
        share = self.result.more.get("interactive_share", math.nan)
        return self.over_rounds(Case(BESIDE), Case(JOBS), lambda beside, jobs: beside.jobs_per_s / ((jobs.per_s or math.nan) * (1 - share)))

    def _of_the_idle_cpus(self) -> float:
        """The share above is of what 32 callers get, in larger batches: interactive requests need more than it of the CPUs."""
        if (alone := self.median(Case(ALONE))) is None:
            return math.nan
        return self.over_rounds(
            Case(BESIDE),
            Case(JOBS),
            lambda beside, jobs: beside.jobs_per_s * (jobs.busy_cpus / (jobs.per_s or math.nan)) / (alone.idle_cpus or math.nan),
        )

    def _spike_p99_times(self) -> float:
        """Return the spike's p99 in times of interactive requests alone; it runs once, and so is held against their median."""
        alone = self.median(Case(ALONE))
        return math.nan if alone is None else self._of_spike("p99_ms") / float(alone.p99_ms)

    def _of_spike(self, name: str) -> float:
        run = self.median(Case(SPIKE))
        return math.nan if run is None else float(getattr(run, name))

    def _upload_memory_mib(self) -> float:
        return max((run.memory_mib for run in self.runs.get(Case(UPLOAD), ())), default=math.nan)

    def _accepting_p99_ms(self) -> float:
        run = self.median(Case(ACCEPTING))
        return math.nan if run is None else float(run.p99_ms)


def _cell(value: float) -> str:
    return "" if math.isnan(value) else figure(value)
