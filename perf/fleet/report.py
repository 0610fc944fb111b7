"""What `perf.fleet` measured: written as JSON and as a summary to read, held against the budget and against the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from perf.fleet import plot
from perf.fleet.alone import Alone
from perf.fleet.servers import Memory
from perf.gateway_report import commit, machine
from perf.interleaved import median_of
from perf.markdown import figure, table
from perf.scenario_report import ScenarioReport

TIDEGATE, ROUND_ROBIN, STICKY_HASH = "tidegate", "round-robin", "sticky-hash"
NEAR = 0.20
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
    """By models, most at one time on one server, as measured."""
    predicted_loads: int
    predicted_refused: int
    predicted_p50_ms: float
    predicted_p99_ms: float


@dataclass(frozen=True)
class Report(ScenarioReport):
    name = "fleet"

    alone: Mapping[str, Alone]
    budget_bytes: int
    memory: Mapping[str, Memory]
    """Of each way's last round."""

    def figures(self) -> dict[str, Any]:
        memory = {way: {"times_s": each.times_s, "held_bytes": list(each.held_bytes.values())} for way, each in self.memory.items()}
        return {"budget_bytes": self.budget_bytes, "alone": {name: asdict(each) for name, each in self.alone.items()}, "memory": memory}

    def write(self) -> None:
        super().write()
        plot.draw(self.memory, self.budget_bytes, self.path("png"))

    def markdown(self) -> str:
        """The summary."""
        hardware, asked = machine(), self.arguments
        sizes = [model.resident_bytes / _MB for model in self.alone.values()]
        trace = (
            "the busiest stretch of GenTD26's for its 16 most used models; Alibaba cluster-trace-v2026-GenAI, research and study use"
            if asked.trace
            else "drawn requests"
        )
        measured = (
            f"`{self.command()}`, commit {commit()}, {hardware['machine']}, {hardware['cpus']} CPUs that clients, gateway and Tritons "
            f"share. {asked.requests} requests in {asked.seconds:g} s ({trace}) for {len(sizes)} text encoders that take {min(sizes):.0f} "
            f"to {max(sizes):.0f} MB each when loaded, on {asked.servers} Tritons with {self.budget_bytes / _MB:.0f} MB for models each; "
            f"nothing is loaded at first. Medians of {asked.rounds} interleaved rounds."
        )
        parts = ["# A fleet with more models than memory", measured, self._happened(), "## Beside the simulator", self._predicted()]
        return "\n\n".join([*parts, "![memory](fleet.png)"]) + "\n"

    def _happened(self) -> str:
        head = (
            "",
            "loads",
            "failed requests",
            "p50 ms",
            "p99 ms",
            "mean ms",
            "all answered after s",
            "a load s",
            "MB held at most",
            "of the budget",
        )
        return table(head, [self._row(case.way, median_of(runs), runs) for case, runs in self.results.items()])

    def _row(self, way: str, run: Run, runs: list[Run]) -> tuple[str, ...]:
        most = max(each.held_bytes for each in runs)
        return (
            way,
            f"{run.loads:g}",
            str(sum(each.failures for each in runs)),
            *map(figure, (run.p50_ms, run.p99_ms, run.mean_ms, run.seconds, run.load_ms / 1000)),
            f"{most / _MB:.0f}",
            f"{most / self.budget_bytes:.0%}" if most <= self.budget_bytes else f"**{most / self.budget_bytes:.0%}**",
        )

    def _predicted(self) -> str:
        rows = [(case.way, *_beside(median_of(runs))) for case, runs in self.results.items()]
        return table(("", "loads", "simulated", "off", "p50 ms", "simulated", "off", "p99 ms", "simulated", "off"), rows)


def _beside(run: Run) -> tuple[str, ...]:
    times = ((run.p50_ms, run.predicted_p50_ms), (run.p99_ms, run.predicted_p99_ms))
    cells = [f"{run.loads:g}", f"{run.predicted_loads:g}", off(run.loads, run.predicted_loads)]
    for happened, predicted in times:
        cells += [figure(happened), figure(predicted), off(happened, predicted)]
    return tuple(cells)


def off(happened: float, predicted: float) -> str:
    """How far the simulator is; bold where that is too far."""
    if not happened:
        return ""
    part = predicted / happened - 1
    return f"{part:+.0%}" if abs(part) <= NEAR else f"**{part:+.0%}**"
