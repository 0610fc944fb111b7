"""The report of `perf.floods`: what each flood costs a caller who does no harm, held against what he has alone, and against what
a neighbour costs him who does no harm either.

On a machine that the gateway shares with Triton, the flooder and the bystander the harmless neighbour alone moves his p99: that is the
floor, below which no flood can be seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perf.floods.table import FLOODS
from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

ALONE = "alone"
_MOVED_AT_MOST = 2.0
"""Times what it is beside a harmless neighbour, or alone, whichever is more: the bystander's p99 beside a flood."""
_MAX_MS = 100.0
"""Any request of the bystander's."""
_ASKED = ("live", "http", "grpc")
_WORST = 12


@dataclass(frozen=True, slots=True)
class Case:
    flood: str
    """A name of `table.FLOODS`, or `ALONE`."""


@dataclass(frozen=True, slots=True)
class Run:
    """Latencies of the bystander's requests during one flood."""

    live_p50_ms: float
    live_p99_ms: float
    live_max_ms: float
    http_p50_ms: float
    http_p99_ms: float
    http_max_ms: float
    grpc_p50_ms: float
    grpc_p99_ms: float
    grpc_max_ms: float

    def cell(self, asked: str) -> str:
        return " / ".join(figure(getattr(self, f"{asked}_{what}_ms")) for what in ("p50", "p99", "max"))

    def max_ms(self) -> float:
        return max(self.live_max_ms, self.http_max_ms, self.grpc_max_ms)

    def moved(self, other: Run) -> float:
        """Times what it is beside the other, the p99 of what suffers most."""
        return max(getattr(self, f"{asked}_p99_ms") / getattr(other, f"{asked}_p99_ms") for asked in _ASKED)


class Report(report.Report):
    name, title, case, run = "floods", "Floods, and a caller who does no harm", Case, Run

    def figures(self) -> dict[str, float]:
        floods, alone, floor = self._floods(), self.median(Case(ALONE)), self._floor()
        moved = [run.moved(alone) for run in floods.values()]
        longest_ms = [run.max_ms() for run in floods.values()]
        if not floods:
            return {}
        return {
            "floods": len(floods),
            "floor": floor,
            "worst_moved": max(moved),
            "worst_beyond_floor": max(moved) / floor,
            "longest_ms": max(longest_ms),
            "moved_too_far": sum(each > _MOVED_AT_MOST * floor for each in moved),
            "too_long": sum(each > _MAX_MS for each in longest_ms),
        }

    def targets(self) -> Sequence[Target]:
        return [
            Target("worst_beyond_floor", "p99 beside the worst flood, times that beside a neighbour", _MOVED_AT_MOST, at_least=False),
            Target("moved_too_far", "floods that move it by more than that", 0.0, at_least=False),
            Target("longest_ms", "longest request beside any flood, ms", _MAX_MS, at_least=False),
            Target("too_long", "floods beside which one takes longer", 0.0, at_least=False),
        ]

    def _floor(self) -> float:
        """How far neighbours that ask one thing after the other move the p99, at least 1; 1 where none was measured."""
        alone = self.median(Case(ALONE))
        return max([1.0, *(self.median(Case(name)).moved(alone) for name in self._harmless())])

    def _harmless(self) -> list[str]:
        return [name for name in self.names("flood") if name != ALONE and FLOODS[name].awaits]

    def summary(self) -> str:
        """The floods that cost most; all of them are in the summary file."""
        alone, floods = self.median(Case(ALONE)), self._floods()
        worst = sorted(floods, key=lambda name: floods[name].moved(alone), reverse=True)[:_WORST]
        explained = (
            f"p50 / p99 / longest in ms; of {len(floods)} floods those that moved the bystander's p99 most. A harmless neighbour moves "
            f"it {self._floor():.1f}x, which is the floor; a flood may move it by {_MOVED_AT_MOST:g} times the floor."
        )
        return f"{explained}\n\n{self._table(worst)}"

    def details(self) -> str:
        return f"## All of them\n\n{self._table(list(self._floods()))}"

    def _floods(self) -> Mapping[str, Run]:
        """Medians beside those that do harm, by name."""
        return {name: self.median(Case(name)) for name in self.names("flood") if name != ALONE and not FLOODS[name].awaits}

    def _table(self, names: Sequence[str]) -> str:
        """Return the table of these floods, below what there is without one: nothing, and clients that ask one thing after the other."""
        head = ("flood", "health", "HTTP inference", "gRPC inference", "p99 moved", "times the floor", "", "connections", "refused")
        rows = [(ALONE, *map(self.median(Case(ALONE)).cell, _ASKED), "", "", "", "", "")]
        return table(head, [*rows, *map(self._row, [*self._harmless(), *names])])

    def _row(self, name: str) -> tuple[str, ...]:
        run, came = self.median(Case(name)), self.result.more["floods"][name]
        moved = run.moved(self.median(Case(ALONE)))
        beyond = moved / self._floor()
        verdict = "met" if beyond <= _MOVED_AT_MOST and run.max_ms() <= _MAX_MS else "**not met**"
        refused = ", ".join(f"{count:,} {reason}" for reason, count in came["refusals"].items())
        of_harm = "" if FLOODS[name].awaits else verdict
        of_floor = "" if FLOODS[name].awaits else f"{beyond:.1f}x"
        return (name, *map(run.cell, _ASKED), f"{moved:.1f}x", of_floor, of_harm, f"{came['connections']:,}", refused)
