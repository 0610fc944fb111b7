"""The report of `perf.hedging`: what hedging and dual execution gain and cost, beside the noise of the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perf.hedging.clients import Work
from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

OFF, OFF_AGAIN, ON, TWICE = "off", "off again", "on", "twice"
"""Ways: without hedging, once more so, with it, and with two servers from the start."""
STRAGGLERS, DEAF, EVEN, BIMODAL = "stragglers", "deaf stragglers", "even", "bimodal"
WORKS = {
    STRAGGLERS: Work(0.005, 0.01, 0.2, heeds=True, numbers=4),
    DEAF: Work(0.005, 0.01, 0.2, heeds=False, numbers=8),
    EVEN: Work(0.005, 0.0, 0.0, heeds=False, numbers=16),
    BIMODAL: Work(0.05, 0.5, 0.45, heeds=True, numbers=32),
}
WAYS = {STRAGGLERS: (OFF, ON, OFF_AGAIN), DEAF: (OFF, ON, OFF_AGAIN), EVEN: (OFF, ON, OFF_AGAIN), BIMODAL: (OFF, TWICE, OFF_AGAIN)}
LOADS = {STRAGGLERS: (0.2, 0.4, 0.6, 0.8), DEAF: (0.2, 0.8), EVEN: (0.4,), BIMODAL: (0.2, 0.4)}
"""Parts of what the servers could compute, at which each work is asked for."""
_EXPLAINED = {
    STRAGGLERS: "5 ms, of which 1 % takes 200 ms longer, and ends when it is cancelled",
    DEAF: "the same, but a cancellation ends nothing",
    EVEN: "5 ms, without stragglers",
    BIMODAL: "50 ms or 500 ms, as it falls; a tenth of the requests",
}
_REFERENCE = 0.2
"""Load at which stragglers are held against the target."""


@dataclass(frozen=True, slots=True)
class Case:
    work: str
    load: float
    way: str


@dataclass(frozen=True, slots=True)
class Run:
    p50_ms: float
    p99_ms: float
    p999_ms: float
    mean_ms: float
    std_ms: float
    executions: float
    """Of the model at Triton, for each request."""
    compute_ms: float
    """At Triton, for each request; of cancelled ones, too."""
    hedged: float
    """Part of the requests that went to a second server."""
    errors: int


class Report(report.Report):
    name, title, case, run = "hedging", "Hedged requests, and requests that go to two servers at once", Case, Run

    def figures(self) -> dict[str, float]:
        found = {}
        for work, load in dict.fromkeys((case.work, case.load) for case in self.runs):
            way, name = WAYS[work][1], f"{_named(work)}_{load * 100:.0f}"
            found[f"{name}_p999_gain"] = self._compared(work, load, OFF, way, lambda off, on: off.p999_ms / on.p999_ms)
            found[f"{name}_more_executions"] = self._compared(work, load, way, OFF, lambda on, off: on.executions / off.executions - 1)
            found[f"{name}_hedged"] = self._compared(work, load, way, OFF, lambda on, off: on.hedged)
            found[f"{name}_p999_over_floor"] = self._p999(work, load, way) / self._floor(work, load)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def targets(self) -> Sequence[Target]:
        reference = f"{STRAGGLERS}_{_REFERENCE * 100:.0f}"
        even = f"{EVEN}_{LOADS[EVEN][0] * 100:.0f}"
        return [
            Target(f"{reference}_p999_gain", "1 % of stragglers: p99.9 without hedging, times that with it", 10.0, at_least=True),
            Target(f"{reference}_more_executions", "1 % of stragglers: more executions", 0.025, at_least=False),
            Target(f"{even}_p999_over_floor", "no stragglers: p99.9, times the worse of two without hedging", 1.05, at_least=False),
            Target(f"{even}_hedged", "no stragglers: part that is hedged", 0.002, at_least=False),
            *(
                Target(f"{STRAGGLERS}_{load * 100:.0f}_p999_over_floor", f"at {load:.0%} load: p99.9, times the floor", 1.0, at_least=False)
                for load in LOADS[STRAGGLERS]
            ),
        ]

    def summary(self) -> str:
        works = self.names("work")
        explained = "\n".join(f"* **{work}**: {_EXPLAINED[work]}." for work in works)
        head = (
            "", "load", "", "p50 ms", "p99 ms", "p99.9 ms", "mean ± deviation ms", "to a second server", "executions of each request",
            "ms at Triton", "errors",
        )  # fmt: skip
        return f"{explained}\n\n{table(head, [self._row(case) for case in self.runs])}\n\n{self._noise()}"

    def _row(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        return (
            case.work, f"{case.load:.0%}", case.way, figure(run.p50_ms), figure(run.p99_ms), figure(run.p999_ms),
            f"{figure(run.mean_ms)} ± {figure(run.std_ms)}", f"{run.hedged:.2%}", f"{run.executions:.3f}", figure(run.compute_ms),
            f"{run.errors:g}",
        )  # fmt: skip

    def _noise(self) -> str:
        """Both runs without hedging of each round, which differ by nothing but the machine's noise."""
        rows = [
            (work, f"{load:.0%}", *(self._ratios(work, load, ratio) for ratio in (_p99, _p999, _compute)))
            for work, load in dict.fromkeys((case.work, case.load) for case in self.runs)
        ]
        return "Noise floor: off again, times off, in each round.\n\n" + table(("", "load", "p99", "p99.9", "ms at Triton"), rows)

    def _ratios(self, work: str, load: float, of: Callable[[Run], float]) -> str:
        pairs = zip(self.runs.get(Case(work, load, OFF_AGAIN), ()), self.runs.get(Case(work, load, OFF), ()), strict=False)
        return " ".join(f"{of(again) / max(of(off), 1e-9):.2f}" for again, off in pairs)

    def _compared(self, work: str, load: float, one: str, other: str, compare: Callable[[Run, Run], float]) -> float:
        return self.over_rounds(Case(work, load, one), Case(work, load, other), compare)

    def _p999(self, work: str, load: float, way: str) -> float:
        run = self.median(Case(work, load, way))
        return math.nan if run is None else float(run.p999_ms)

    def _floor(self, work: str, load: float) -> float:
        """The worse of two p99.9 without hedging."""
        return max(self._p999(work, load, OFF), self._p999(work, load, OFF_AGAIN))


def _named(work: str) -> str:
    return work.replace(" ", "_")


def _p99(run: Run) -> float:
    return run.p99_ms


def _p999(run: Run) -> float:
    return run.p999_ms


def _compute(run: Run) -> float:
    return run.compute_ms
