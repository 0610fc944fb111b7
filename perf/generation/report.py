"""The report of `perf.generation`: what sharing steps gains all callers of a language model, and costs one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

SHARED, ALONE = "continuous batching", "one after the other"
WAYS = (SHARED, ALONE)
CALLERS = (1, 4, 8)
_MANY = 8


@dataclass(frozen=True, slots=True)
class Case:
    way: str
    callers: int
    """How many ask at the same moment, each once."""


@dataclass(frozen=True, slots=True)
class Run:
    tokens_per_s: float
    """Tokens of all answers together, from the first request to the last answer's end."""
    first_ms: float
    """Median over the callers of the time from the request to the first token, as `token_ms` is."""
    token_ms: float
    """From one token to the next, within an answer."""
    last_ms: float
    """The whole answer of the caller who waited longest."""


class Report(report.Report):
    name, title, case, run = "generation", "Generated text", Case, Run

    def figures(self) -> dict[str, float]:
        found = {}
        for name, callers in (("speedup_at_8", _MANY), ("speedup_at_1", 1)):
            if Case(SHARED, callers) in self.runs and Case(ALONE, callers) in self.runs:
                found[name] = self._compare(callers, lambda shared, alone: shared.tokens_per_s / alone.tokens_per_s)
        if Case(SHARED, _MANY) in self.runs and Case(ALONE, _MANY) in self.runs:
            found["first_at_8"] = self._compare(_MANY, lambda shared, alone: shared.first_ms / alone.first_ms)
        return found

    def targets(self) -> Sequence[Target]:
        return [
            Target("speedup_at_8", "tokens per second of eight callers, as a multiple of one after the other", 2.0, at_least=True),
            Target("first_at_8", "their wait for the first token, as a part of the same", 0.5, at_least=False),
            Target("speedup_at_1", "tokens per second of one caller alone, as a multiple of the same", 0.95, at_least=True),
        ]

    def summary(self) -> str:
        head = ("callers", "", "tokens/s", "first token ms", "from token to token ms", "longest answer ms")
        return table(head, [self._row(case) for case in sorted(self.runs, key=lambda case: (case.callers, WAYS.index(case.way)))])

    def _row(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        return str(case.callers), case.way, *map(figure, (run.tokens_per_s, run.first_ms, run.token_ms, run.last_ms))

    def _compare(self, callers: int, ratio: Callable[[Run, Run], float]) -> float:
        return self.over_rounds(Case(SHARED, callers), Case(ALONE, callers), ratio)
