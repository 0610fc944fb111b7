"""What batching has done, as sums that only grow: their ratios are the padding, the batch size, and the share of time spent waiting."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from python_backends.batching.waiting import Batch

# Metric -> its description; they become Triton counters with the prefix tidegate_batching_.
COUNTERS: Mapping[str, str] = {
    "batches_total": "Batches that were run",
    "requests_total": "Requests in these batches",
    "rows_total": "Rows in these batches",
    "useful_tokens_total": "Rows times length of each request: the work that was asked for",
    "padded_tokens_total": "Rows times longest length of each batch: the work that was computed",
    "queue_seconds_total": "Seconds that requests waited for their batch, summed over requests",
    "compute_seconds_total": "Seconds that batches ran, summed over batches",
}


@dataclass(frozen=True, slots=True)
class Counts:
    """One number for each of `COUNTERS`, in its order."""

    batches: int = 0
    requests: int = 0
    rows: int = 0
    useful_tokens: int = 0
    padded_tokens: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


def of_batch(batch: Batch[Any], *, began_s: float, ended_s: float) -> Counts:
    """What one batch adds."""
    waited_s = sum(began_s - waiter.since_s for waiter in batch.waiters)
    return Counts(1, len(batch.waiters), batch.rows, batch.useful, batch.padded, waited_s, ended_s - began_s)


class Tally:
    """Counts of several threads, until somebody takes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()

    def add(self, counts: Counts) -> None:
        """Count more."""
        with self._lock:
            self._counts += counts

    def take(self) -> Mapping[str, float]:
        """What has been counted since the last time, by metric; empty where nothing was."""
        with self._lock:
            counts, self._counts = self._counts, Counts()
        return dict(zip(COUNTERS, astuple(counts), strict=True)) if counts.batches else {}
