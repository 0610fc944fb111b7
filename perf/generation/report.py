"""The report of `perf.generation`: what sharing steps gains all callers of a language model, and what it costs one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

SHARED, ALONE, PLAIN = "continuous batching", "one after the other", "transformers' own loop"
CALLERS = (1, 4, 8)
LONG_TOKENS = 900
"""Length of a prompt that is read beside an answer that is being written."""
_MANY = 8


@dataclass(frozen=True, slots=True)
class Case:
    way: str
    callers: int
    """How many ask at the same moment, each once."""
    beside: int = 0
    """Tokens of a prompt that is read while their answers are written; of no callers: by itself."""


@dataclass(frozen=True, slots=True)
class Run:
    tokens_per_s: float = math.nan
    """Tokens of all answers together, from the first request to the last answer's end."""
    first_ms: float = math.nan
    """Median over the callers of the time from the request to the first token, as `token_ms` is."""
    token_ms: float = math.nan
    """From one token to the next, within an answer."""
    last_ms: float = math.nan
    """The whole answer of the caller who waited longest."""
    pause_ms: float = math.nan
    """The longest from one token to the next while a prompt is read."""
    read_ms: float = math.nan
    """From that prompt's request to its first token."""


class Report(report.Report):
    name, title, case, run = "generation", "Generated text", Case, Run

    def figures(self) -> dict[str, float]:
        reads, writes = Case(SHARED, 0, self._long), Case(SHARED, 1, self._long)
        many, by_turns = Case(SHARED, _MANY), Case(ALONE, _MANY)
        found = {
            "speedup_at_8": self.over_rounds(many, by_turns, lambda shared, alone: shared.tokens_per_s / alone.tokens_per_s),
            "first_at_8": self.over_rounds(many, by_turns, lambda shared, alone: shared.first_ms / alone.first_ms),
            "of_plain_at_1": self.over_rounds(
                Case(SHARED, 1), Case(PLAIN, 1), lambda shared, plain: shared.tokens_per_s / plain.tokens_per_s
            ),
            "pause_of_prompt": self.over_rounds(writes, reads, lambda beside, alone: beside.pause_ms / alone.read_ms),
        }
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def targets(self) -> Sequence[Target]:
        pause = f"longest pause of an answer beside a prompt of {self._long} tokens, as a part of what the prompt takes alone"
        return [
            Target("speedup_at_8", "tokens per second of eight callers, as a multiple of one after the other", 2.0, at_least=True),
            Target("first_at_8", "their wait for the first token, as a part of the same", 0.5, at_least=False),
            Target("of_plain_at_1", "tokens per second of one caller alone, transformers' own loop being 1", 0.95, at_least=True),
            Target("pause_of_prompt", pause, 0.25, at_least=False),
        ]

    @property
    def _long(self) -> int:
        """Tokens of the long prompt."""
        return max((case.beside for case in self.runs), default=0) or LONG_TOKENS

    def summary(self) -> str:
        head = ("callers", "", "tokens/s", "first token ms", "from token to token ms", "longest answer ms")
        answers = sorted((case for case in self.runs if not case.beside), key=lambda case: case.callers)
        prompts = sorted((case for case in self.runs if case.beside), key=lambda case: case.callers)
        tables = [table(head, map(self._row, answers))]
        if prompts:
            beside = ("answers being written", "tokens of a prompt", "it is read in ms", "longest pause of an answer ms")
            tables.append(table(beside, map(self._row_beside, prompts)))
        return "\n\n".join(tables)

    def _row(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        return str(case.callers), case.way, *map(figure, (run.tokens_per_s, run.first_ms, run.token_ms, run.last_ms))

    def _row_beside(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        return str(case.callers), str(case.beside), figure(run.read_ms), figure(run.pause_ms)
