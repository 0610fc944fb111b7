"""The report of `perf.hedging`: what hedging and dual execution gain and cost, beside the noise of the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from perf.hedging.work import Work
from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

OFF, OFF_AGAIN, ON, TWICE = "off", "off again", "on", "twice"
"""Ways: without hedging, once more so, with it, and with two servers from the start."""
STRAGGLERS, DEAF, EVEN, BIMODAL, HALF, SLOW = "stragglers", "deaf stragglers", "even", "bimodal", "half", "slow stragglers"
WORKS = {
    STRAGGLERS: Work(0.005, 0.01, 0.2, heeds=True),
    DEAF: Work(0.005, 0.01, 0.2, heeds=False),
    EVEN: Work(0.005, 0.0, 0.0, heeds=False),
    BIMODAL: Work(0.05, 0.5, 0.45, heeds=True),
    HALF: Work(0.005, 0.3, 0.2, heeds=True),
    SLOW: Work(0.05, 0.01, 2.0, heeds=True),
}
WAYS = {
    STRAGGLERS: (OFF, ON, OFF_AGAIN),
    DEAF: (OFF, ON, OFF_AGAIN),
    EVEN: (OFF, ON, OFF_AGAIN),
    BIMODAL: (OFF, TWICE, OFF_AGAIN),
    SLOW: (OFF, ON, OFF_AGAIN),
}
LOADS = {STRAGGLERS: (0.2, 0.4, 0.6, 0.8), EVEN: (0.4,), DEAF: (0.4,), BIMODAL: (0.3,), SLOW: (0.5,)}
"""Parts of what the servers could compute, at which each work is asked for."""
_EXPLAINED = {
    STRAGGLERS: "5 ms, of which 1 % takes 200 ms longer, and ends when it is cancelled",
    DEAF: "the same, but a cancellation ends nothing",
    EVEN: "5 ms, without stragglers",
    SLOW: "all times ten times those of the stragglers, on which the noise of a busy machine tells less",
    BIMODAL: "50 ms or 500 ms, as it falls; one request for 50 of the others",
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
    """Executions of the model at Triton for each request."""
    compute_ms: float
    """At Triton, for each request; of cancelled ones, too."""
    cpu_ms: float
    """CPU time of gateway and Tritons for each request."""
    foretold_p999_ms: float
    foretold_executions: float
    """Executions that the simulator foretells; NaN where it was not asked."""
    hedged: float
    """Part of the requests that went to a second server."""
    won: float
    """Part that it answered first."""
    no_idle_server: float
    """Part that was late when no other server was idle."""
    over_budget: float
    """Part that was not sent to a second server since the retry budget was spent."""
    errors: int


class Report(report.Report):
    name, title, case, run = "hedging", "Hedged requests, and requests that go to two servers at once", Case, Run

    def figures(self) -> dict[str, float]:
        found = {f"half_{name}": value for name, value in self.result.more.get("half", {}).items()}
        for work, load in dict.fromkeys((case.work, case.load) for case in self.runs):
            off, on, name = Case(work, load, OFF), Case(work, load, WAYS[work][1]), f"{_named(work)}_{load * 100:.0f}"
            found[f"{name}_p999_gain"] = self.over_rounds(off, on, lambda off, on: off.p999_ms / on.p999_ms)
            found[f"{name}_std_change"] = self.over_rounds(off, on, lambda off, on: on.std_ms / off.std_ms - 1)
            found[f"{name}_mean_change"] = self.over_rounds(off, on, lambda off, on: on.mean_ms / off.mean_ms - 1)
            found[f"{name}_more_executions"] = self.over_rounds(on, off, _more_executions)
            found[f"{name}_more_compute"] = self.over_rounds(on, off, lambda on, off: on.compute_ms / off.compute_ms - 1)
            found[f"{name}_more_cpu"] = self.over_rounds(on, off, lambda on, off: on.cpu_ms / off.cpu_ms - 1)
            found[f"{name}_hedged"] = self.over_rounds(on, off, lambda on, off: on.hedged)
            found[f"{name}_p999_over_off"] = median(self._over_off(work, load) or [math.nan])
            found[f"{name}_p999_noise"] = max((max(each, 1 / each) for each in self._pairs(work, load, _p999)), default=math.nan)
            found[f"{name}_p999_beyond_noise"] = found[f"{name}_p999_over_off"] / found[f"{name}_p999_noise"]
            found[f"{name}_p999_foretold"] = self.over_rounds(on, off, lambda on, off: on.foretold_p999_ms / on.p999_ms)
            found[f"{name}_extra_foretold"] = self._extra_foretold(on, off)
            for each in ("p999", "extra"):
                found[f"{name}_{each}_foretold_error"] = abs(found[f"{name}_{each}_foretold"] - 1)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def targets(self) -> Sequence[Target]:
        reference = f"{STRAGGLERS}_{_REFERENCE * 100:.0f}"
        even = f"{EVEN}_{LOADS[EVEN][0] * 100:.0f}"
        return [
            Target(f"{reference}_p999_gain", "1 % of stragglers: p99.9 without hedging, times that with it", 10.0, at_least=True),
            Target(f"{reference}_more_executions", "1 % of stragglers: more executions", 0.025, at_least=False),
            Target(f"{reference}_more_compute", "1 % of stragglers: more time at Triton", 0.025, at_least=False),
            Target(f"{even}_p999_beyond_noise", "no stragglers: p99.9, times that without hedging and the noise", 1.05, at_least=False),
            Target(f"{even}_hedged", "no stragglers: part that is hedged", 0.002, at_least=False),
            *(
                Target(
                    f"{STRAGGLERS}_{load * 100:.0f}_p999_beyond_noise",
                    f"at {load:.0%} load: p99.9, times that without hedging and the noise",
                    1.0,
                    at_least=False,
                )
                for load in LOADS[STRAGGLERS]
            ),
            Target(f"{reference}_p999_foretold_error", "p99.9 foretold by the simulator, off by", 0.2, at_least=False),
            Target(f"{reference}_extra_foretold_error", "more executions foretold, off by", 0.2, at_least=False),
            Target("half_more_processes", "half of all requests hedged: more processes", 0.0, at_least=False),
            Target("half_more_memory", "half of all requests hedged: more memory", 0.05, at_least=False),
        ]

    def summary(self) -> str:
        works = self.names("work")
        explained = "\n".join(f"* **{work}**: {_EXPLAINED[work]}." for work in works)
        head = (
            "", "load", "", "p50 ms", "p99 ms", "p99.9 ms", "foretold", "mean ± deviation ms", "to a second server", "it was first",
            "none was idle", "over budget", "executions", "foretold", "ms at Triton", "CPU ms", "errors",
        )  # fmt: skip
        return "\n\n".join(filter(None, [explained, table(head, [self._row(case) for case in self.runs]), self._noise(), self._half()]))

    def _row(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        return (
            case.work, f"{case.load:.0%}", case.way, figure(run.p50_ms), figure(run.p99_ms), figure(run.p999_ms),
            figure(run.foretold_p999_ms), f"{figure(run.mean_ms)} ± {figure(run.std_ms)}", f"{run.hedged:.2%}", f"{run.won:.2%}",
            f"{run.no_idle_server:.2%}", f"{run.over_budget:.2%}", f"{run.executions:.3f}", _executions(run.foretold_executions),
            figure(run.compute_ms), figure(run.cpu_ms), f"{run.errors:g}",
        )  # fmt: skip

    def _noise(self) -> str:
        """Both runs without hedging of each round, which differ by nothing but the machine's noise."""
        rows = [
            (work, f"{load:.0%}", *(_listed(self._pairs(work, load, each)) for each in _NOISY), _listed(self._over_off(work, load)))
            for work, load in dict.fromkeys((case.work, case.load) for case in self.runs)
        ]
        head = ("", "load", "p99", "p99.9", "ms at Triton", "beside it p99.9 with hedging, times that without")
        return "Noise floor: off again, times off, in each round.\n\n" + table(head, rows)

    def _half(self) -> str:
        """What became of processes and memory while half of all requests went to two servers."""
        half = self.result.more.get("half")
        if not half:
            return ""
        return (
            f"Half of all requests at two servers for {half['seconds']:g} s: {half['requests']:,} requests, {half['hedged']:.0%} of them "
            f"at two servers, {half['errors']:g} errors, {half['more_processes']:+g} processes, {half['more_threads']:+g} threads, "
            f"{half['more_memory']:+.1%} of {half['was_mib']:,.0f} MiB of gateway and Tritons together."
        )

    def _pairs(self, work: str, load: float, of: Callable[[Run], float]) -> list[float]:
        """Off again, times off, in each round."""
        pairs = zip(self.runs.get(Case(work, load, OFF_AGAIN), ()), self.runs.get(Case(work, load, OFF), ()), strict=False)
        return [max(of(again), 1e-9) / max(of(off), 1e-9) for again, off in pairs]

    def _extra_foretold(self, on: Case, off: Case) -> float:
        """How many more executions the simulator foretold, times those that there were, in all rounds together: in one there are so
        few that chance decides."""
        rounds = list(zip(self.runs.get(on, ()), self.runs.get(off, ()), strict=False))
        more = sum(_more_executions(*each) for each in rounds)
        return sum(each.foretold_executions - 1 for each, _ in rounds) / more if more > 0 else math.nan

    def _over_off(self, work: str, load: float) -> list[float]:
        """The p99.9 with hedging, times the mean (geometric) of both without it, in each round."""
        ways = (WAYS[work][1], OFF, OFF_AGAIN)
        rounds = zip(*(self.runs.get(Case(work, load, way), ()) for way in ways), strict=False)
        return [on.p999_ms / math.sqrt(off.p999_ms * again.p999_ms) for on, off, again in rounds]


def _named(work: str) -> str:
    return work.replace(" ", "_")


def _listed(values: Sequence[float]) -> str:
    return " ".join(f"{each:.2f}" for each in values)


def _executions(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _more_executions(on: Run, off: Run) -> float:
    return on.executions / off.executions - 1


def _p999(run: Run) -> float:
    return run.p999_ms


_NOISY: Sequence[Callable[[Run], float]] = (lambda run: run.p99_ms, _p999, lambda run: run.compute_ms)
"""What is compared between runs without hedging."""
