"""Counts of generation: what was computed, and how full the batch and its key-value cache are."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

# Metric -> its description; they become Triton's with the prefix tidegate_generation_.
COUNTERS: Mapping[str, str] = {
    "tokens_total": "Tokens that were written",
    "prompt_tokens_total": "Tokens of prompts that were read",
    "steps_total": "Steps of the batch; tokens per step are how well requests share them",
    "cancelled_total": "Requests whose callers left before their answer was whole",
}
GAUGES: Mapping[str, str] = {
    "running": "Requests in the batch",
    "waiting": "Requests that wait for a place in it",
    "cached_tokens": "Tokens of the key-value cache that are reserved, of kv_cache_tokens",
}


class Counts:
    """Thread-safe accumulator of counts, which a reporter empties from time to time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._added: Counter[str] = Counter()
        self._seen: dict[str, int] = dict.fromkeys(GAUGES, 0)

    def add(self, *, tokens: int = 0, prompt_tokens: int = 0, steps: int = 0, cancelled: int = 0) -> None:
        """Count what a step did."""
        with self._lock:
            self._added.update(tokens_total=tokens, prompt_tokens_total=prompt_tokens, steps_total=steps, cancelled_total=cancelled)

    def observe(self, *, running: int, waiting: int, cached: int) -> None:
        """Remember how full the batch is."""
        with self._lock:
            self._seen = {"running": running, "waiting": waiting, "cached_tokens": cached}

    def take(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return the counts since the last call, which are reset, and what was observed last; both by metric."""
        with self._lock:
            added, self._added = self._added, Counter()
            return +added, self._seen
