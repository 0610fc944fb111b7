"""What a gateway's response cache has answered, by its metrics page."""

from __future__ import annotations

import re
import urllib.request
from dataclasses import dataclass

_TIMEOUT_S = 10.0
_SAMPLE = re.compile(r'^tidegate_cache_answers_total\{.*status="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CacheAnswers:
    """Counts of the cache's answers since the gateway started; what joined a request under way counts as found."""

    found: float
    asked: float

    @classmethod
    def at(cls, url: str) -> CacheAnswers:
        """Read the counts of the gateway with this metrics page."""
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return cls.of(answer.read().decode())

    @classmethod
    def of(cls, page: str) -> CacheAnswers:
        counts: dict[str, float] = {}
        for status, count in _SAMPLE.findall(page):  # of every model
            counts[status] = counts.get(status, 0.0) + float(count)
        return cls(counts.get("hit", 0.0) + counts.get("joined", 0.0), sum(counts.values()))

    def __sub__(self, earlier: CacheAnswers) -> CacheAnswers:
        return CacheAnswers(self.found - earlier.found, self.asked - earlier.asked)

    @property
    def hit_ratio(self) -> float:
        """0 where nothing was asked: without a cache, or of a model whose answers are not kept."""
        return self.found / self.asked if self.asked else 0.0
