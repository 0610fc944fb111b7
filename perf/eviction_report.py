"""What `perf.eviction` found: written as JSON and as a summary to read, held against the target."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from perf.gateway_report import commit
from perf.markdown import figure, table
from perf.policies import OURS
from perf.scenario_report import ScenarioReport

BOUND, LRU = "clairvoyant", "LRU"

TARGET_SIZE_PERCENT = 10
MEAN_AT_LEAST = 0.35
"""Of the gap from LRU to the bound, over the traces."""
WORSE_AT_MOST = 0.005
"""Than LRU, of all that might be saved, on any trace."""


@dataclass(frozen=True, slots=True)
class Case:
    trace: str
    size_percent: float
    """Of the distinct keys."""
    policy: str


@dataclass(frozen=True, slots=True)
class Run:
    hit_ratio: float
    saved_ms: float
    """Where all cost the same: 1 each."""
    saved_part: float
    """Of what all requests cost."""
    use_us: float
    """Of this machine, for a request: for orientation."""


@dataclass(frozen=True)
class Report(ScenarioReport):
    name = "eviction"

    def run(self, trace: str, size: float, policy: str) -> Run:
        run: Run = self.results[Case(trace, size, policy)][0]
        return run

    def names(self, field: str) -> list[str]:
        """The traces or policies, in order."""
        return list(dict.fromkeys(getattr(case, field) for case in self.results))

    def closed(self, trace: str, size: float, policy: str) -> float:
        """The part of the gap from LRU to the bound."""
        lru, bound = (self.run(trace, size, each).saved_part for each in (LRU, BOUND))
        return (self.run(trace, size, policy).saved_part - lru) / (bound - lru) if bound > lru else 0.0

    def mean_closed(self, size: float, policy: str) -> float:
        return mean(self.closed(trace, size, policy) for trace in self.names("trace"))

    def gained(self, size: float, policy: str) -> dict[str, float]:
        """By trace, what is saved beyond LRU, of what all requests cost."""
        return {trace: self.run(trace, size, policy).saved_part - self.run(trace, size, LRU).saved_part for trace in self.names("trace")}

    def markdown(self) -> str:
        """The summary."""
        told = (
            f"`{self.command()}`, commit {commit()}. Hit ratio in percent and, in brackets, the part of the gap from LRU to the "
            "clairvoyant bound that is closed; where requests differ in cost it is a gap in saved time. The bound is MIN (exact), for "
            "saved time PFOO-L (an upper bound). Entries are of one size, and the room is for so many of them as the size says of the "
            "distinct keys. What policies remember of keys that they no longer keep is free."
        )
        sources = "\n".join(f"* **{text.partition(':')[0]}**{text[text.index(':') :]}." for text in self.texts)
        tables = "\n\n".join(self._table(size) for size in self.arguments.sizes)
        return "\n\n".join(["# Which answers to keep", told, *self._targets(), tables, self._saved(), "## Traces", sources]) + "\n"

    def command(self) -> str:
        """Without the folders of the machine that measured."""
        return " ".join([f"python -m perf.{self.name}", *(Path(each).name for each in sys.argv[1:])])

    def _targets(self) -> list[str]:
        if TARGET_SIZE_PERCENT not in self.arguments.sizes or OURS not in self.arguments.policies:
            return []
        closed, worst = self.mean_closed(TARGET_SIZE_PERCENT, OURS), min(self.gained(TARGET_SIZE_PERCENT, OURS).values())
        wanted = (
            f"Wanted at {TARGET_SIZE_PERCENT} %: {MEAN_AT_LEAST:.0%} of the gap on average: {closed:.1%}, "
            f"{_met(closed >= MEAN_AT_LEAST)}. Never more than {100 * WORSE_AT_MOST:g} points worse than LRU: "
            f"{100 * worst:+.2f} at worst, {_met(worst >= -WORSE_AT_MOST)}."
        )
        return [wanted]

    def _table(self, size: float) -> str:
        others = [policy for policy in self.names("policy") if policy not in (LRU, BOUND)]
        rows = [self._row(trace, size, others) for trace in self.names("trace")]
        means = [f"({100 * self.mean_closed(size, policy):.1f})" for policy in others]
        worst = [f"{100 * min(self.gained(size, policy).values()):+.2f}" for policy in others]
        rows += [("mean of the gap closed", "", "", *means), ("worst against LRU, points", "", "", *worst)]
        return f"## At {size:g} %\n\n" + table(("trace", BOUND, LRU, *others), rows)

    def _row(self, trace: str, size: float, others: list[str]) -> tuple[str, ...]:
        ratios = [f"{100 * self.run(trace, size, policy).hit_ratio:.1f}" for policy in (BOUND, LRU, *others)]
        closed = ["", "", *(f" ({100 * self.closed(trace, size, policy):.0f})" for policy in others)]
        return trace, *(ratio + part for ratio, part in zip(ratios, closed, strict=True))

    def _saved(self) -> str:
        """Where requests differ in cost."""
        sizes, policies = self.arguments.sizes, self.names("policy")
        costed = [trace for trace in self.names("trace") if any(self._differ(trace, size) for size in sizes)]
        rows = [
            (f"{trace}, {size:g} %", *(figure(self.run(trace, size, policy).saved_ms / 1000) for policy in policies))
            for trace in costed
            for size in sizes
        ]
        return "## Saved seconds\n\n" + table(("trace", *policies), rows)

    def _differ(self, trace: str, size: float) -> bool:
        runs = (self.run(trace, size, policy) for policy in self.names("policy"))
        return any(abs(run.saved_part - run.hit_ratio) > 1e-9 for run in runs)


def _met(is_met: bool) -> str:
    return "met" if is_met else "**not met**"
