"""What `perf.batching` measured: written as JSON and as a summary to read, printed, held against the targets."""

from __future__ import annotations

from dataclasses import dataclass

from perf.gateway_report import commit, machine
from perf.interleaved import median_of
from perf.markdown import figure, table
from perf.scenario_report import ScenarioReport

LENGTH_AWARE = "length-aware"

EXPLAINED = {
    LENGTH_AWARE: "the backend `text_encoder`: what waits is split into the batches that cost least",
    "one-by-one": "no batching",
    "triton": "`dynamic_batching`, which batches requests of one length that follow each other",
    "first-come": "batches of at most 32 as they come, padded to the longest",
    "padded-256": "the same, padded to 256 tokens",
    "padded-512": "the same, padded to 512 tokens",
}


@dataclass(frozen=True, slots=True)
class Case:
    variant: str
    mix: str
    way: str


@dataclass(frozen=True, slots=True)
class Run:
    sequences_per_s: float
    p50_ms: float
    p99_ms: float
    short_p99_ms: float
    long_p99_ms: float
    padding: float
    """Tokens computed, as a multiple of those that the requests had."""
    rows_per_batch: float
    client_share: float
    """CPU that the load generator took, of one core."""
    errors: int


@dataclass(frozen=True, slots=True)
class Target:
    """One line of DESIGN.md's: length-aware batching on the 95/5 mix, against another way."""

    what: str
    variant: str
    field: str
    against: str | None
    limit: float
    at_least: bool


_MIX = "95/5"
TARGETS = (
    Target("sequences/s, times first-come's", "int8", "sequences_per_s", "first-come", 8.0, at_least=True),
    Target("sequences/s, times one-by-one's", "int8", "sequences_per_s", "one-by-one", 1.25, at_least=True),
    Target("sequences/s, times one-by-one's", "fp32", "sequences_per_s", "one-by-one", 1.25, at_least=True),
    Target("padding", "int8", "padding", None, 1.08, at_least=False),
    Target("padding", "fp32", "padding", None, 1.08, at_least=False),
    Target("p99 of short ones, as part of first-come's", "int8", "short_p99_ms", "first-come", 0.2, at_least=False),
    Target("p99 of short ones, as part of first-come's", "fp32", "short_p99_ms", "first-come", 0.2, at_least=False),
)


@dataclass(frozen=True)
class Report(ScenarioReport):
    name = "batching"

    def median(self, case: Case) -> Run | None:
        """None for what was not measured."""
        return median_of(self.results[case]) if case in self.results else None

    def markdown(self) -> str:
        """The summary."""
        groups = list(dict.fromkeys((case.variant, case.mix) for case in self.results))
        parts = [self._head(), self._target_table(), *(self._group(*group) for group in groups)]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _head(self) -> str:
        hardware, ways = machine(), dict.fromkeys(case.way for case in self.results)
        client = max(median_of(runs).client_share for runs in self.results.values())
        measured = (
            f"`{self.command()}`, commit {commit()}, {hardware['machine']}, {hardware['cpus']} CPUs that client and Triton share, no GPU "
            f"used. Straight at Triton over HTTP with token ids, {self.arguments.callers} callers; medians of {self.arguments.rounds} "
            f"interleaved rounds of {self.arguments.duration_s:g} s. The load generator took {client:.0%} of one core at most."
        )
        texts = f"Texts: {'; '.join(self.texts)}. The mix 95/5 has 95 % short ones and 5 % long ones; `equal` has short ones of one length."
        explained = "\n".join(f"* **{way}**: {EXPLAINED[way]}." for way in ways)
        lines = ["# Batching texts of mixed lengths", measured, texts, explained, "![sequences per second and p99](batching.png)"]
        return "\n\n".join(lines)

    def _target_table(self) -> str:
        rows = []
        for target in TARGETS:
            run = self.median(Case(target.variant, _MIX, LENGTH_AWARE))
            other = self.median(Case(target.variant, _MIX, target.against)) if target.against else None
            if run is None or (target.against and other is None):
                continue
            value = getattr(run, target.field) / (getattr(other, target.field) if other else 1.0)
            is_met = value >= target.limit if target.at_least else value <= target.limit
            limit = f"{'>=' if target.at_least else '<='} {target.limit:g}"
            rows.append((target.what, target.variant, f"{value:.2f}", limit, "met" if is_met else "**not met**"))
        return f"## Targets, {_MIX}\n\n" + table(("target", "variant", "measured", "wanted", ""), rows) if rows else ""

    def _group(self, variant: str, mix: str) -> str:
        rows = []
        for case in (case for case in self.results if (case.variant, case.mix) == (variant, mix)):
            run = median_of(self.results[case])
            figures = (run.sequences_per_s, run.p50_ms, run.p99_ms, run.short_p99_ms, run.long_p99_ms, run.padding, run.rows_per_batch)
            rows.append((case.way, *map(figure, figures), f"{run.errors:.0f}"))
        head = ("way", "sequences/s", "p50 ms", "p99 ms", "short p99", "long p99", "padding", "rows/batch", "errors")
        return f"## {variant}, {mix}\n\n" + table(head, rows)
