"""What a drill of jobs has found to be wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_SAID = 20
"""Complaints of each kind that are quoted at most."""


@dataclass(slots=True)
class Findings:
    """What is wrong, by the name of its figure in `Run`, with some of it in words."""

    counts: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)

    def add(self, figure: str, text: str, count: int = 1) -> None:
        self.counts[figure] += count
        if self.counts[figure] <= _SAID:
            self.said.append(f"{figure}: {text}"[:400])
