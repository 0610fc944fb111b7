"""The mix of batches by which a model's variants are compared: what is asked of it, in rows and tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.latency_table import LatencyTable

PARAMETER = "variant_mix"

_BATCH = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})(?::([0-9]{1,9}(?:\.[0-9]{1,9})?))?")


@dataclass(frozen=True, slots=True)
class Mix:
    """Batches (rows, tokens) with their weights; `text` is how it is written: `ROWSxTOKENS[:WEIGHT]`, blanks between."""

    batches: Mapping[tuple[int, int], float]
    text: str

    @classmethod
    def parse(cls, text: str) -> Mix:
        """Read it; a weight that is left out is 1. Raises ConfigError: it is written otherwise, or has no weight above 0."""
        batches: dict[tuple[int, int], float] = {}
        for part in text.split():
            if not (match := _BATCH.fullmatch(part)):
                raise ConfigError(f"parameter '{PARAMETER}': {part!r} is no ROWSxTOKENS[:WEIGHT], such as 1x16:0.9")
            batch = int(match[1]), int(match[2])
            batches[batch] = batches.get(batch, 0.0) + float(match[3] or 1)
        if not sum(batches.values()) > 0:
            raise ConfigError(f"parameter '{PARAMETER}' needs a batch with a weight above 0, such as 1x16, not {text!r}")
        return cls(batches, " ".join(text.split()))

    def mean_ms(self, table: LatencyTable) -> float:
        """What one of its batches takes, on the average by weight."""
        total = sum(weight * table.cost_ms(rows, tokens) for (rows, tokens), weight in self.batches.items())
        return total / sum(self.batches.values())


ONE_SHORT_TEXT = Mix.parse("1x16")
"""Alone, as people wait for it. A mean over a whole latency table is that of its largest batches: it chose what took five times as long."""
