"""The report of `perf.batching`: sequences a second and latencies of each way of batching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

LENGTH_AWARE, ONE_BY_ONE, TRITON, FIRST_COME = "length-aware", "one-by-one", "triton", "first-come"

EXPLAINED = {
    LENGTH_AWARE: "the backend `text_encoder`: what waits is split into the batches that cost least",
    ONE_BY_ONE: "no batching",
    TRITON: "`dynamic_batching`, which batches requests of one length that follow each other",
    FIRST_COME: "batches of at most 32 as they come, padded to the longest",
    "padded-256": "the same, padded to 256 tokens",
    "padded-512": "the same, padded to 512 tokens",
}
_MIX = "95/5"
TOGETHER = f"{_MIX} by 16"
"""The mix whose requests have 16 texts each. A sixteenth of the callers ask, so that as many texts are in flight as elsewhere."""


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


class Report(report.Report):
    name, title, case, run, plot = "batching", "Batching texts of mixed lengths", Case, Run, "png"

    def figures(self) -> dict[str, float]:
        return {name: value for variant in self.names("variant") for name, value in self._figures_of(variant).items()}

    def targets(self) -> Sequence[Target]:
        return [
            target
            for variant in self.names("variant")
            for target in (
                Target(f"{variant}_times_first_come", f"{variant}: sequences/s, times first-come's", 8.0, at_least=True),
                Target(f"{variant}_times_one_by_one", f"{variant}: sequences/s, times one-by-one's", 1.25, at_least=True),
                Target(f"{variant}_padding", f"{variant}: padding", 1.08, at_least=False),
                Target(f"{variant}_short_p99_of_first_come", f"{variant}: p99 of short ones, as part of first-come's", 0.2, at_least=False),
            )
        ]

    def summary(self) -> str:
        ways = self.names("way")
        groups = dict.fromkeys((case.variant, case.mix) for case in self.runs)
        rows = [(f"{variant}, {mix}", *(self._cell(Case(variant, mix, way)) for way in ways)) for variant, mix in groups]
        explained = "\n".join(f"* **{way}**: {EXPLAINED[way]}." for way in ways)
        held = (
            f"The targets are about the mix {_MIX}. In the table: sequences/s, and p99 of the short ones in ms. `{TOGETHER}` has 16 texts "
            "in each request, which is a long one if one of them is."
        )
        return f"{held}\n\n{table(('', *ways), rows)}\n\n{explained}"

    def details(self) -> str:
        groups = dict.fromkeys((case.variant, case.mix) for case in self.runs)
        return "\n\n".join(self._group(*group) for group in groups)

    def _figures_of(self, variant: str) -> dict[str, float]:
        own, first_come, one_by_one = (Case(variant, _MIX, way) for way in (LENGTH_AWARE, FIRST_COME, ONE_BY_ONE))
        if not {own, first_come, one_by_one} <= self.runs.keys():
            return {}
        return {
            f"{variant}_times_first_come": self.over_rounds(own, first_come, _times_the_sequences),
            f"{variant}_times_one_by_one": self.over_rounds(own, one_by_one, _times_the_sequences),
            f"{variant}_padding": self.median(own).padding,
            f"{variant}_short_p99_of_first_come": self.over_rounds(
                own, first_come, lambda ours, other: ours.short_p99_ms / other.short_p99_ms
            ),
        }

    def _cell(self, case: Case) -> str:
        run = self.median(case)
        return f"{figure(run.sequences_per_s)}, {figure(run.short_p99_ms)}" if run else ""

    def _group(self, variant: str, mix: str) -> str:
        rows = []
        for case in (case for case in self.runs if (case.variant, case.mix) == (variant, mix)):
            run = self.median(case)
            figures = (run.sequences_per_s, run.p50_ms, run.p99_ms, run.short_p99_ms, run.long_p99_ms, run.padding, run.rows_per_batch)
            rows.append((case.way, *map(figure, figures), f"{run.client_share:.0%}", f"{run.errors:g}"))
        head = ("way", "sequences/s", "p50 ms", "p99 ms", "short p99", "long p99", "padding", "rows/batch", "client", "errors")
        return f"## {variant}, {mix}\n\n" + table(head, rows)


def _times_the_sequences(ours: Run, other: Run) -> float:
    return ours.sequences_per_s / other.sequences_per_s
