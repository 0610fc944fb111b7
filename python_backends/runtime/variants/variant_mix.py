"""Mix of typical batches (rows x tokens) by which a model's variants are compared: the parameter
`variant_mix`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.variants.latency_table import LatencyTable

PARAMETER = "variant_mix"

_BATCH = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})(?::([0-9]{1,9}(?:\.[0-9]{1,9})?))?")


@dataclass(frozen=True, slots=True)
class Mix:
    """Weighted batches (rows, tokens); `text` is their written form, `ROWSxTOKENS[:WEIGHT]` separated by
    blanks.
    """

    batches: Mapping[tuple[int, int], float]
    text: str

    @classmethod
    def parse(cls, text: str) -> Mix:
        """Parse the written form; the default weight is 1. Raises ConfigError if it is malformed or has no
        positive weight.
        """
        batches: dict[tuple[int, int], float] = {}
        for part in text.split():
            if not (match := _BATCH.fullmatch(part)):
                raise ConfigError(f"parameter '{PARAMETER}': {part!r} is not of the form ROWSxTOKENS[:WEIGHT], such as 1x16:0.9")
            batch = int(match[1]), int(match[2])
            batches[batch] = batches.get(batch, 0.0) + float(match[3] or 1)
        if not sum(batches.values()) > 0:
            raise ConfigError(f"parameter '{PARAMETER}' needs a batch with a weight above 0, such as 1x16, not {text!r}")
        return cls(batches, " ".join(text.split()))

    def mean_ms(self, table: LatencyTable) -> float:
        """Return the weighted mean time of the batches, in milliseconds."""
        total = sum(weight * table.cost_ms(rows, tokens) for (rows, tokens), weight in self.batches.items())
        return total / sum(self.batches.values())


ONE_SHORT_TEXT = Mix.parse("1x16")
"""The default: one short text, as people wait for it. A mean over the whole latency table is dominated by its
largest batches; it once chose a variant that took five times as long for one text."""
