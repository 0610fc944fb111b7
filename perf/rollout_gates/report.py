"""The report of `perf.rollout_gates`: false rollbacks of versions that are alike, and requests until a worse one is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target
from perf.rollout_gates.judges import GATES, JUDGES, KAYENTA, LEAST_POINTS, LEAST_SAMPLES, POINTS_PER_ANALYSIS, THRESHOLD, TIMES

_TARGETS = (Target("false_rollbacks_percent", "false rollbacks, worst world, %", 1.0, at_least=False),)


@dataclass(frozen=True, slots=True)
class Case:
    world: str
    judge: str
    is_alike: bool


@dataclass(frozen=True, slots=True)
class Run:
    simulated: int
    failed: int
    """Simulated rollouts in which the canary was found to be worse."""
    canary_requests: float
    """Median of the canary's requests until then; of what was not found, all that there were. 0 where both are alike."""


class Report(report.Report):
    name, title, case, run = "rollout-gates", "When a canary is rolled back", Case, Run

    def figures(self) -> dict[str, float]:
        alike = [self.false_percent(case.world, GATES) for case in self.runs if case.is_alike and case.judge == GATES]
        return {"false_rollbacks_percent": max(alike)} if alike else {}

    def targets(self) -> Sequence[Target]:
        return _TARGETS

    def false_percent(self, world: str, judge: str) -> float:
        run: Run = self.median(Case(world, judge, True))
        return 100 * run.failed / run.simulated

    def summary(self) -> str:
        return "\n\n".join((self._alike(), self._worse(), _TOLD))

    def _alike(self) -> str:
        worlds = [world for world in self.names("world") if Case(world, GATES, True) in self.runs]
        rows = [
            (
                world,
                f"{self.median(Case(world, GATES, True)).simulated:,}",
                *(f"{self.false_percent(world, judge):.2f} %" for judge in JUDGES),
            )
            for world in worlds
        ]
        return table(("both versions alike", "simulated", "rolled back", f"by the {THRESHOLD}", f"by {KAYENTA}"), rows)

    def _worse(self) -> str:
        worlds = [world for world in self.names("world") if Case(world, GATES, False) in self.runs]
        return table(
            (
                "the next version",
                "found",
                "canary requests until then, median",
                f"by the {THRESHOLD}: found",
                "requests",
                f"by {KAYENTA}: found",
                "requests",
            ),
            [(world, *(cell for judge in JUDGES for cell in self._found(world, judge))) for world in worlds],
        )

    def _found(self, world: str, judge: str) -> tuple[str, str]:
        run: Run = self.median(Case(world, judge, False))
        return f"{100 * run.failed / run.simulated:.0f} %", figure(run.canary_requests)


_TOLD = (
    f"The {THRESHOLD}: {TIMES:g} times the present version's rate, from {LEAST_SAMPLES} requests on. {KAYENTA}: its judge's "
    f"Mann-Whitney U test at 98 %, a tick as a point of its time series, at {LEAST_POINTS} points and every {POINTS_PER_ANALYSIS} "
    "beyond; with points of a minute, as usual, it says nothing in the first 50 minutes."
)
