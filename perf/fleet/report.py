"""The report of `perf.fleet`: what happened on real Tritons, held against the budget and against the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

TIDEGATE, ROUND_ROBIN, STICKY_HASH = "tidegate", "round-robin", "sticky-hash"
_NEAR_PERCENT = 20.0
"""The simulator is to be no further off."""
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Case:
    way: str


@dataclass(frozen=True, slots=True)
class Run:
    loads: int
    unloads: int
    failures: int
    p50_ms: float
    p99_ms: float
    mean_ms: float
    seconds: float
    """Until the last answer."""
    load_ms: float
    unload_ms: float
    held_bytes: int
    """Most bytes that models held at one time on one server, as measured."""
    predicted_loads: int
    predicted_refused: int
    predicted_p50_ms: float
    predicted_p99_ms: float


@dataclass(slots=True)
class Memory:
    """Samples of the memory of each Triton beneath a process, over time."""

    times_s: list[float] = field(default_factory=list)
    """From the first sample on."""
    held_bytes: dict[int, list[int]] = field(default_factory=dict)
    """Bytes held by each session; 0 where it was not there yet."""

    def empty_bytes(self) -> int:
        """Return what that Triton held before the first load which held most then."""
        return max((samples[0] for samples in self.held_bytes.values()), default=0)

    def most_bytes_of_models(self) -> int:
        """At one time, on the one where it was most."""
        return max((max(samples) - samples[0] for samples in self.held_bytes.values()), default=0)


class Report(report.Report):
    name, title, case, run, plot = "fleet", "A fleet with more models than memory", Case, Run, "png"

    @property
    def budget_bytes(self) -> int:
        """Return the memory that each server has for models."""
        return int(self.result.more["budget_bytes"])

    def memory(self) -> dict[str, Memory]:
        """Return the memory of each way's last round."""
        samples = self.result.more["memory"].items()
        return {way: Memory(each["times_s"], dict(enumerate(each["held_bytes"]))) for way, each in samples}

    def figures(self) -> dict[str, float]:
        offs = [_off_percent(run) for run in map(self.median, self.runs)]
        most_bytes = max((run.held_bytes for run in self.runs.get(Case(TIDEGATE), ())), default=0)
        found: dict[str, float] = {
            "failed_requests": sum(run.failures for runs in self.runs.values() for run in runs),
            "most_held_percent": 100 * most_bytes / self.budget_bytes,
            "loads_off_percent": max(loads for loads, _ in offs),
            "p99_off_percent": max(p99 for _, p99 in offs),
        }
        if Case(ROUND_ROBIN) in self.runs:
            found["times_fewer_loads"] = self.over_rounds(Case(ROUND_ROBIN), Case(TIDEGATE), lambda turns, own: turns.loads / own.loads)
        return found

    def targets(self) -> Sequence[Target]:
        return (
            Target("failed_requests", "requests that failed", 0, at_least=False),
            Target("most_held_percent", "most held of the budget at one time, %", 100.0, at_least=False),
            Target("loads_off_percent", "the simulator's loads, off by at most, %", _NEAR_PERCENT, at_least=False),
            Target("p99_off_percent", "the simulator's p99, off by at most, %", _NEAR_PERCENT, at_least=False),
        )

    def summary(self) -> str:
        head = (
            "",
            "loads",
            "failed requests",
            "p50 ms",
            "p99 ms",
            "mean ms",
            "all answered after s",
            "a load s",
            "most held of the budget",
        )
        rows = [self._row(case.way, self.median(case), runs) for case, runs in self.runs.items()]
        sizes = [model["resident_bytes"] / _MB for model in self.result.more["alone"].values()]
        asked = self.options
        told = (
            f"{asked['requests']} requests in {asked['seconds']:g} s for {len(sizes)} text encoders that take {min(sizes):.0f} to "
            f"{max(sizes):.0f} MB each when loaded, on {asked['servers']} Tritons with {self.budget_bytes / _MB:.0f} MB for models each; "
            f"nothing is loaded at first."
        )
        return f"{told}\n\n{table(head, rows)}\n\nBeside the simulator:\n\n{self._predicted()}"

    def _row(self, way: str, run: Run, runs: list[Run]) -> tuple[str, ...]:
        figures = map(figure, (run.p50_ms, run.p99_ms, run.mean_ms, run.seconds, run.load_ms / 1000))
        most = max(each.held_bytes for each in runs)
        return way, f"{run.loads:g}", str(sum(each.failures for each in runs)), *figures, f"{most / self.budget_bytes:.0%}"

    def _predicted(self) -> str:
        rows = [(case.way, *_beside(self.median(case))) for case in self.runs]
        return table(("", "loads", "simulated", "off", "p50 ms", "simulated", "off", "p99 ms", "simulated", "off"), rows)


def _beside(run: Run) -> tuple[str, ...]:
    times = ((run.p50_ms, run.predicted_p50_ms), (run.p99_ms, run.predicted_p99_ms))
    cells = [f"{run.loads:g}", f"{run.predicted_loads:g}", off(run.loads, run.predicted_loads)]
    for happened, predicted in times:
        cells += [figure(happened), figure(predicted), off(happened, predicted)]
    return tuple(cells)


def _off_percent(run: Run) -> tuple[float, float]:
    """How far the simulator is, in loads and in p99."""
    pairs = ((run.loads, run.predicted_loads), (run.p99_ms, run.predicted_p99_ms))
    loads, p99 = (100 * abs(predicted / happened - 1) if happened else 0.0 for happened, predicted in pairs)
    return loads, p99


def off(happened: float, predicted: float) -> str:
    """The same, with its sign; empty of nothing."""
    return f"{predicted / happened - 1:+.0%}" if happened else ""
