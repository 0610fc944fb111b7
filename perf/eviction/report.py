"""The report of `perf.eviction`: hit ratios, and how much of the gap from LRU to the clairvoyant bound each policy closes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target
from perf.policies import OURS

BOUND, LRU = "clairvoyant", "LRU"

TARGET_SIZE_PERCENT = 10
_TARGETS = (
    Target(
        "gap_closed_percent", f"gap from LRU to the bound closed at {TARGET_SIZE_PERCENT} %, mean of the traces, %", 35.0, at_least=True
    ),
    Target("worst_against_lru_points", f"points of hit ratio against LRU at {TARGET_SIZE_PERCENT} %, worst trace", -0.5, at_least=True),
)


@dataclass(frozen=True, slots=True)
class Case:
    trace: str
    size_percent: float
    """The cache's size as a part of the distinct keys."""
    policy: str


@dataclass(frozen=True, slots=True)
class Run:
    hit_ratio: float
    saved_ms: float
    """Cost that hits have saved; where all keys cost the same, 1 each."""
    saved_part: float
    """Part of all requests' cost that hits have saved."""
    use_us: float
    """Time that the policy takes for a request on this machine: for orientation."""


class Report(report.Report):
    name, title, case, run, plot = "eviction", "Which answers to keep", Case, Run, "png"

    def median_at(self, trace: str, size: float, policy: str) -> Run:
        run: Run = self.median(Case(trace, size, policy))
        return run

    def closed(self, trace: str, size: float, policy: str) -> float:
        """The part of the gap from LRU to the bound."""
        lru, bound = (self.median_at(trace, size, each).saved_part for each in (LRU, BOUND))
        return (self.median_at(trace, size, policy).saved_part - lru) / (bound - lru) if bound > lru else 0.0

    def mean_closed(self, size: float, policy: str) -> float:
        return mean(self.closed(trace, size, policy) for trace in self.names("trace"))

    def worst(self, size: float, policy: str) -> float:
        """The least that is saved beyond LRU on any trace, in percent of what all its requests cost."""
        gained = (
            self.median_at(each, size, policy).saved_part - self.median_at(each, size, LRU).saved_part for each in self.names("trace")
        )
        return 100 * min(gained)

    def figures(self) -> dict[str, float]:
        if TARGET_SIZE_PERCENT not in self.options["sizes"] or not {LRU, OURS} <= set(self.names("policy")):
            return {}
        others = [policy for policy in self.names("policy") if policy not in (BOUND, OURS)]
        best = mean(max(self.closed(trace, TARGET_SIZE_PERCENT, policy) for policy in others) for trace in self.names("trace"))
        return {
            "gap_closed_percent": 100 * self.mean_closed(TARGET_SIZE_PERCENT, OURS),
            "worst_against_lru_points": self.worst(TARGET_SIZE_PERCENT, OURS),
            "best_other_of_each_trace_percent": 100 * best,
        }

    def targets(self) -> Sequence[Target]:
        return _TARGETS

    def summary(self) -> str:
        sizes = self.options["sizes"]
        told = (
            "Hit ratio in percent and, in brackets, the part of the gap from LRU to the clairvoyant bound that is closed; where requests "
            "differ in cost it is a gap in saved time. The bound is MIN (exact), for saved time PFOO-L (an upper bound)."
        )
        return f"{told}\n\n{self._table(TARGET_SIZE_PERCENT if TARGET_SIZE_PERCENT in sizes else sizes[0])}"

    def details(self) -> str:
        others = [self._table(size) for size in self.options["sizes"] if size != TARGET_SIZE_PERCENT]
        return "\n\n".join([*others, self._saved(), "Traces:"])

    def _table(self, size: float) -> str:
        others = [policy for policy in self.names("policy") if policy not in (LRU, BOUND)]
        rows = [self._row(trace, size, others) for trace in self.names("trace")]
        means = [f"({100 * self.mean_closed(size, policy):.1f})" for policy in others]
        worst = [f"{self.worst(size, policy):+.2f}" for policy in others]
        rows += [("mean of the gap closed", "", "", *means), ("worst against LRU, points", "", "", *worst)]
        return f"Room for {size:g} % of the distinct keys:\n\n" + table(("trace", BOUND, LRU, *others), rows)

    def _row(self, trace: str, size: float, others: list[str]) -> tuple[str, ...]:
        ratios = [f"{100 * self.median_at(trace, size, policy).hit_ratio:.1f}" for policy in (BOUND, LRU, *others)]
        closed = ["", "", *(f" ({100 * self.closed(trace, size, policy):.0f})" for policy in others)]
        return trace, *(ratio + part for ratio, part in zip(ratios, closed, strict=True))

    def _saved(self) -> str:
        """Return the table of what was saved, of traces whose requests differ in cost."""
        sizes, policies = self.options["sizes"], self.names("policy")
        costed = [trace for trace in self.names("trace") if any(self._differ(trace, size) for size in sizes)]
        rows = [
            (f"{trace}, {size:g} %", *(figure(self.median_at(trace, size, policy).saved_ms / 1000) for policy in policies))
            for trace in costed
            for size in sizes
        ]
        return "## Saved seconds\n\n" + table(("trace", *policies), rows)

    def _differ(self, trace: str, size: float) -> bool:
        runs = (self.median_at(trace, size, policy) for policy in self.names("policy"))
        return any(abs(run.saved_part - run.hit_ratio) > 1e-9 for run in runs)
