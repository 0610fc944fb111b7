"""The report of `perf.simulate`: loads and latencies of each policy in each fleet, beside the clairvoyant bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from control_plane.fleet.simulation.outcome import SimulationResult
from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target
from perf.simulate.cases import CASES
from perf.simulate.policies import OURS, ROUND_ROBIN

LIMIT_S = 0.100

TARGET_CASE = "8x5"
_SHOWN = (ROUND_ROBIN, "hash", "bounded hash", "ModelMesh, times scaled", OURS)
_TARGETS = (
    Target("times_fewer_loads", f"{TARGET_CASE}: times fewer loads than round robin", 12.0, at_least=True),
    Target("within_percent", f"{TARGET_CASE}: requests within {1000 * LIMIT_S:g} ms, %", 99.9, at_least=True),
    Target("loads_of_bound", f"{TARGET_CASE}: loads, times the clairvoyant bound's (a stretch)", 2.0, at_least=False),
)


@dataclass(frozen=True, slots=True)
class Case:
    fleet: str
    policy: str


@dataclass(frozen=True, slots=True)
class Run:
    loads: int
    evictions: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    part_within: float
    """Part of all requests that was answered within `LIMIT_S`."""
    refused: int
    requests: int
    most_held_part: float
    """Largest part of a server's budget that was held at one time."""
    bound_loads: int
    """Loads of the clairvoyant bound."""
    took_s: float
    """Seconds that this machine took to simulate it: for orientation."""

    @classmethod
    def of(cls, outcome: SimulationResult, *, budget_bytes: int, bound_loads: int, took_s: float) -> Run:
        p50_ms, p99_ms, p999_ms = (1000 * outcome.quantile_s(part) for part in (0.5, 0.99, 0.999))
        return cls(
            outcome.loads, outcome.evictions, p50_ms, p99_ms, p999_ms, outcome.part_within(LIMIT_S), outcome.refused,
            outcome.requests, outcome.max_held_bytes / budget_bytes, bound_loads, took_s,
        )  # fmt: skip


class Report(report.Report):
    name, title, case, run, plot = "simulate", "Which server, and what has to go", Case, Run, "png"

    def figures(self) -> dict[str, float]:
        if not {Case(TARGET_CASE, OURS), Case(TARGET_CASE, ROUND_ROBIN)} <= self.runs.keys():
            return {}
        ours, round_robin = (self.median(Case(TARGET_CASE, policy)) for policy in (OURS, ROUND_ROBIN))
        return {
            "times_fewer_loads": round_robin.loads / max(1, ours.loads),
            "within_percent": 100 * ours.part_within,
            "loads_of_bound": ours.loads / max(1, ours.bound_loads),
        }

    def targets(self) -> Sequence[Target]:
        return _TARGETS

    def bound(self, fleet: str) -> int:
        """The clairvoyant bound's loads."""
        return next(runs[0].bound_loads for case, runs in self.runs.items() if case.fleet == fleet)

    def summary(self) -> str:
        shown = [policy for policy in _SHOWN if policy in self.names("policy")]
        rows = [self._shown(fleet, shown) for fleet in self.names("fleet")]
        told = f"Loads / p99 in ms of what was answered / percent of all requests within {1000 * LIMIT_S:g} ms."
        return f"{told}\n\n" + table(("", "bound", *shown), rows)

    def details(self) -> str:
        told = (
            "10 ms of service, 50 ms for a load (of the median model, where they differ), one request and one load at a time on each "
            "server, the others served meanwhile. The clairvoyant bound knows the future and has all memory in one piece; it has loads "
            "only. Who refuses requests, as ModelMesh's churn guard does, can have fewer. The large fleet has one seed."
        )
        return "\n\n".join([told, *map(self._table, self.names("fleet")), "Traces:"])

    def _shown(self, fleet: str, policies: Sequence[str]) -> tuple[str, ...]:
        runs = (self.median(Case(fleet, policy)) for policy in policies)
        cells = [f"{run.loads:,.0f} / {figure(run.p99_ms)} / {100 * run.part_within:.2f}" if run else "" for run in runs]
        return fleet, f"{self.bound(fleet):,.0f}", *cells

    def _table(self, fleet: str) -> str:
        runs = {case.policy: self.median(case) for case in self.runs if case.fleet == fleet}
        rows = [_row(policy, run) for policy, run in runs.items()]
        any_run = next(iter(runs.values()))
        rows.append(("clairvoyant bound", f"{any_run.bound_loads:,.0f}", "", "", "", "", "", ""))
        head = ("", "loads", "unloads", "p50 ms", "p99 ms", "p99.9 ms", f"within {1000 * LIMIT_S:g} ms", "refused")
        return f"## {fleet}\n\n{CASES[fleet].told}; {any_run.requests:,.0f} requests.\n\n" + table(head, rows)


def _row(policy: str, run: Run) -> tuple[str, ...]:
    latencies = (figure(each) for each in (run.p50_ms, run.p99_ms, run.p999_ms))
    return policy, f"{run.loads:,.0f}", f"{run.evictions:,.0f}", *latencies, f"{run.part_within:.2%}", f"{run.refused:,.0f}"
