"""What `perf.simulate` found: written as JSON and as a summary to read, held against the targets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control_plane.simulation.outcome import Outcome
from perf.gateway_report import commit
from perf.interleaved import median_of
from perf.markdown import figure, table
from perf.scenario_report import ScenarioReport
from perf.simulate.cases import CASES
from perf.simulate.policies import OURS, ROUND_ROBIN

LIMIT_S = 0.100

TARGET_CASE = "8x5"
FEWER_LOADS_THAN_ROUND_ROBIN = 12
PART_WITHIN_LIMIT = 0.999
LOADS_OF_THE_BOUND = 2.0
"""A stretch."""


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
    """Of all requests, answered within `LIMIT_S`."""
    refused: int
    requests: int
    most_held_part: float
    """Of a server's budget, at one time."""
    bound_loads: int
    """The clairvoyant bound's."""
    took_s: float
    """Of this machine, to simulate it: for orientation."""

    @classmethod
    def of(cls, outcome: Outcome, *, budget_bytes: int, bound_loads: int, took_s: float) -> Run:
        p50_ms, p99_ms, p999_ms = (1000 * outcome.quantile_s(part) for part in (0.5, 0.99, 0.999))
        return cls(
            outcome.loads, outcome.evictions, p50_ms, p99_ms, p999_ms, outcome.part_within(LIMIT_S), outcome.refused,
            outcome.requests, outcome.most_held_bytes / budget_bytes, bound_loads, took_s,
        )  # fmt: skip


@dataclass(frozen=True)
class Report(ScenarioReport):
    name = "simulate"

    def run(self, fleet: str, policy: str) -> Run:
        """The median over the seeds, each figure by itself."""
        run: Run = median_of(self.results[Case(fleet, policy)])
        return run

    def bound(self, fleet: str) -> int:
        """The clairvoyant bound's loads."""
        bounds: Iterator[int] = (runs[0].bound_loads for case, runs in self.results.items() if case.fleet == fleet)
        return next(bounds)

    def names(self, field: str) -> list[str]:
        """The fleets or policies, in order."""
        return list(dict.fromkeys(getattr(case, field) for case in self.results))

    def markdown(self) -> str:
        """The summary."""
        told = (
            f"`{self.command()}`, commit {commit()}. Medians of {self.arguments.seeds} seeds; 10 ms of service, 50 ms for a load (of the "
            "median model, where they differ), one request and one load at a time on each server, the others served meanwhile. Latencies "
            f"are of what was answered, the part within {1000 * LIMIT_S:g} ms is of all. The clairvoyant bound knows the future and has "
            "all memory in one piece; it has loads only. Who refuses requests, as ModelMesh's churn guard does, can have fewer. The "
            "large fleet has one seed."
        )
        tables = "\n\n".join(self._table(fleet) for fleet in self.names("fleet"))
        sources = "\n".join(f"* {text}" for text in self.texts)
        return "\n\n".join(["# Which server, and what has to go", told, *self._targets(), tables, "## Traces", sources]) + "\n"

    def command(self) -> str:
        """Without the folders of the machine that measured."""
        return " ".join([f"python -m perf.{self.name}", *(Path(each).name for each in sys.argv[1:])])

    def figures(self) -> dict[str, Any]:
        return {"limit_ms": 1000 * LIMIT_S}

    def _targets(self) -> list[str]:
        if not {(TARGET_CASE, OURS), (TARGET_CASE, ROUND_ROBIN)} <= {(case.fleet, case.policy) for case in self.results}:
            return []
        ours, round_robin = self.run(TARGET_CASE, OURS), self.run(TARGET_CASE, ROUND_ROBIN)
        fewer, of_bound = round_robin.loads / max(1, ours.loads), ours.loads / max(1, ours.bound_loads)
        wanted = (
            f"Wanted at {TARGET_CASE}: {FEWER_LOADS_THAN_ROUND_ROBIN} times fewer loads than round robin: {fewer:.1f}, "
            f"{_met(fewer >= FEWER_LOADS_THAN_ROUND_ROBIN)}. {PART_WITHIN_LIMIT:.1%} within {1000 * LIMIT_S:g} ms: "
            f"{ours.part_within:.2%}, {_met(ours.part_within >= PART_WITHIN_LIMIT)}. As a stretch at most {LOADS_OF_THE_BOUND:g} times the "
            f"clairvoyant bound's loads: {of_bound:.2f}, {_met(of_bound <= LOADS_OF_THE_BOUND)}."
        )
        return [wanted]

    def _table(self, fleet: str) -> str:
        policies = [case.policy for case in self.results if case.fleet == fleet]
        runs = {policy: self.run(fleet, policy) for policy in policies}
        rows = [_row(policy, run) for policy, run in runs.items()]
        any_run = next(iter(runs.values()))
        rows.append(("clairvoyant bound", f"{any_run.bound_loads:,.0f}", "", "", "", "", "", ""))
        head = ("", "loads", "unloads", "p50 ms", "p99 ms", "p99.9 ms", f"within {1000 * LIMIT_S:g} ms", "refused")
        return f"## {fleet}\n\n{CASES[fleet].told}; {any_run.requests:,.0f} requests.\n\n" + table(head, rows)


def _row(policy: str, run: Run) -> tuple[str, ...]:
    latencies = (figure(each) for each in (run.p50_ms, run.p99_ms, run.p999_ms))
    return policy, f"{run.loads:,.0f}", f"{run.evictions:,.0f}", *latencies, f"{run.part_within:.2%}", f"{run.refused:,.0f}"


def _met(is_met: bool) -> str:
    return "met" if is_met else "**not met**"
