"""What `perf.floods` measured: written as JSON and as a table to read, held against the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perf.floods.flooder import Flooded
from perf.floods.table import FLOODS
from perf.gateway_report import commit, machine
from perf.interleaved import median_of
from perf.markdown import figure, table
from perf.scenario_report import ScenarioReport

ALONE = "alone"
MOVED_AT_MOST = 2.0
"""Times its own when it is alone, the bystander's p99 beside a flood."""
MAX_MS = 100.0
"""Any request of the bystander's."""


@dataclass(frozen=True, slots=True)
class Case:
    flood: str
    """A name of `table.FLOODS`, or `ALONE`."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the bystander's requests took."""

    live_p50_ms: float
    live_p99_ms: float
    live_max_ms: float
    http_p50_ms: float
    http_p99_ms: float
    http_max_ms: float
    grpc_p50_ms: float
    grpc_p99_ms: float
    grpc_max_ms: float


@dataclass(frozen=True)
class Report(ScenarioReport):
    name = "floods"

    flooded: Mapping[str, Flooded]

    def figures(self) -> dict[str, Any]:
        return {
            "floods": {
                name: {"sent_mib": round(each.sent_bytes / 2**20, 1), "connections": each.connections, "refusals": each.refusals}
                for name, each in self.flooded.items()
            }
        }

    def markdown(self) -> str:
        """The summary."""
        hardware, alone = machine(), median_of(self.results[Case(ALONE)])
        measured = (
            f"`{self.command()}`, commit {commit()}, {hardware['machine']}, {hardware['cpus']} CPUs that the bystander, the flood, the "
            "gateway and Triton share. The bystander asks for the gateway's health and, over each door, for a small inference, in turns, "
            f"one every 4 ms; a flood runs beside it for {self.arguments.seconds:g} s, out of a process of low priority, and asks "
            f"for another model, but for the large answers. p50 / p99 / longest, "
            f"medians of {self.arguments.rounds} rounds. Wanted: the bystander's p99 is at most "
            f"{MOVED_AT_MOST:g} times what it is alone, and no request takes more than {MAX_MS:g} ms. "
            "On shared CPUs a client that asks one thing after the other moves it too; the column behind it compares with that."
        )
        head = (
            "flood",
            "health, ms",
            "HTTP inference",
            "gRPC inference",
            "p99 moved",
            "than beside no flood",
            "",
            "connections",
            "refused",
        )
        rows = [(ALONE, *_figures(alone), "", "", "", "", "")]
        rows += [self._row(case.flood, median_of(runs), alone) for case, runs in self.results.items() if case.flood != ALONE]
        return "\n\n".join(["# Floods, and a caller who does no harm", measured, table(head, rows)]) + "\n"

    def _row(self, name: str, run: Run, alone: Run) -> tuple[str, ...]:
        moved, flooded = _moved(run, alone), self.flooded[name]
        is_met = moved <= MOVED_AT_MOST and max(run.live_max_ms, run.http_max_ms, run.grpc_max_ms) <= MAX_MS
        harmless = [runs for case, runs in self.results.items() if case.flood in FLOODS and _is_like_but_harmless(case.flood, name)]
        by_harmless = f"{_moved(run, median_of(harmless[0])):.1f}x" if harmless else ""
        verdict = "" if FLOODS[name].awaits else "met" if is_met else "**not met**"
        refused = ", ".join(f"{count:,} {reason}" for reason, count in flooded.refusals.items())
        return (name, *_figures(run), f"{moved:.1f}x", by_harmless, verdict, f"{flooded.connections:,}", refused)


def _moved(run: Run, other: Run) -> float:
    """Times what it is beside the other, the p99 of what suffers most."""
    pairs = ((run.live_p99_ms, other.live_p99_ms), (run.http_p99_ms, other.http_p99_ms), (run.grpc_p99_ms, other.grpc_p99_ms))
    return max(beside_ms / other_ms for beside_ms, other_ms in pairs)


def _is_like_but_harmless(name: str, flood: str) -> bool:
    return FLOODS[name].awaits and not FLOODS[flood].awaits and FLOODS[name].door == FLOODS[flood].door


def _figures(run: Run) -> tuple[str, ...]:
    return (
        _cell(run.live_p50_ms, run.live_p99_ms, run.live_max_ms),
        _cell(run.http_p50_ms, run.http_p99_ms, run.http_max_ms),
        _cell(run.grpc_p50_ms, run.grpc_p99_ms, run.grpc_max_ms),
    )


def _cell(*values_ms: float) -> str:
    return " / ".join(map(figure, values_ms))
