"""The report of `perf.rollouts`: what rollouts in a row cost callers, and how many requests a bad version touches until it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import ClassVar

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

IN_A_ROW = "in a row"
SHADOW, NO_SHADOW, COST = "shadow", "no shadow", "cost"


@dataclass(frozen=True, slots=True)
class Case:
    """Rollouts in a row, one bad version, or what a shadow costs callers."""

    what: str
    way: str = ""


_NOT_COMPARED = Case("wrong", NO_SHADOW)
"""Only a shadow has both versions' answers to one request: without it what is wrong, quick and without a fault goes through."""


@dataclass(frozen=True, slots=True)
class Run:
    """Counts of what callers and rollouts saw; NaN for what a case does not measure."""

    rollouts: int = 0
    asked: int = 0
    failed: int = 0
    wrong: int = 0
    """Answers whose contents are not those of the model that they name, such as wrong hits of the cache."""
    misassigned: int = 0
    """Answered by a version that the request was not assigned to, and sequences and streams of several versions."""
    as_wanted: int = 0
    """Rollouts that ended as they were to: promoted, aborted or rolled back."""
    touched: int = 0
    """Callers' requests that a bad version has answered, or that failed for it."""
    copied: int = 0
    ended_after_s: float = nan
    """From the beginning of the rollout."""
    p99_ratio: float = nan
    """Callers' 99th percentile with a shadow of 10 % to that without."""
    p50_ratio: float = nan


class Report(report.Report):
    name, title, case, run = "rollouts", "Rollouts on a fleet under load", Case, Run
    _TARGETS: ClassVar[Sequence[Target]] = (
        Target("failed", "in a row: requests that failed", 0, at_least=False),
        Target("misassigned", "in a row: requests answered by a version that they were not assigned to", 0, at_least=False),
        Target("wrong", "in a row: wrong answers and hits", 0, at_least=False),
        Target("not_as_wanted", "in a row: rollouts that did not end as they were to", 0, at_least=False),
        Target("not_caught", "bad versions that were not rolled back, but for wrong ones without a shadow", 0, at_least=False),
        Target("p99_ratio", "callers' p99 with a shadow of 10 % / without", 1.05, at_least=False),
    )

    def figures(self) -> dict[str, float]:
        made: dict[str, float] = {}
        if (row := self.median(Case(IN_A_ROW))) is not None:
            made |= {"rollouts": row.rollouts, "asked": row.asked, "failed": row.failed, "misassigned": row.misassigned}
            made |= {"wrong": row.wrong, "not_as_wanted": row.rollouts - row.as_wanted}
        if bad := self._bad():
            made["not_caught"] = sum(run.rollouts - run.as_wanted for case in bad if case != _NOT_COMPARED for run in self.runs[case])
        if (cost := self.median(Case(COST))) is not None:
            made |= {"p99_ratio": cost.p99_ratio, "p50_ratio": cost.p50_ratio}
        return made

    def targets(self) -> Sequence[Target]:
        return self._TARGETS

    def summary(self) -> str:
        return "\n\n".join(filter(None, (self._in_a_row(), self._bad_versions(), self._cost())))

    def details(self) -> str:
        reasons = self.result.more.get("reasons", {})
        rows = [(name, reason) for name, reason in reasons.items()]
        return table(("version", "why it ended"), rows) if rows else ""

    def _bad(self) -> list[Case]:
        return [case for case in self.runs if case.way in (SHADOW, NO_SHADOW)]

    def _in_a_row(self) -> str:
        row = self.median(Case(IN_A_ROW))
        if row is None:
            return ""
        return (
            f"In {row.rollouts:,.0f} rollouts, rollbacks and aborts in a row {row.asked:,.0f} requests, of which {row.failed:,.0f} failed."
        )

    def _bad_versions(self) -> str:
        rows = []
        for case in self._bad():
            run = self.median(case)
            caught = "yes" if run.as_wanted == run.rollouts else "nobody compares" if case == _NOT_COMPARED else "**no**"
            rows.append(
                (case.what, case.way, caught, figure(run.ended_after_s), f"{run.copied:,.0f}", f"{run.touched:,.0f}", f"{run.failed:,.0f}")
            )
        head = ("the next version", "with", "caught", "gone after s", "copies", "callers' requests touched", "of all requests failed")
        return table(head, rows) if rows else ""

    def _cost(self) -> str:
        cost = self.median(Case(COST))
        return (
            ""
            if cost is None
            else f"With a shadow of 10 %, callers' p50 is {cost.p50_ratio:.2f} times what it is without, p99 {cost.p99_ratio:.2f} times."
        )
