"""Counters of batching; their ratios give the padding, the mean batch size, and the share of time spent in
the queue.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from python_backends.batching.batch_queue import Batch

# Metric -> its description; they become Triton counters with the prefix tidegate_batching_.
COUNTERS: Mapping[str, str] = {
    "batches_total": "Batches that were run",
    "requests_total": "Requests in these batches; one whose texts differ in length counts in each that it is divided among",
    "rows_total": "Rows in these batches",
    "useful_tokens_total": "Sum over requests of rows times length: the requested work",
    "padded_tokens_total": "Sum over batches of rows times longest length: the computed work, with padding",
    "queue_seconds_total": "Seconds that requests waited for their batch, summed over requests",
    "compute_seconds_total": "Seconds that batches ran, summed over batches",
    "cancelled_total": "Requests that were cancelled while they waited, and not computed",
    "expired_total": "Requests whose time was over while they waited, and which were not computed",
}


@dataclass(frozen=True, slots=True)
class Counts:
    """Values of the counters, in the order of `COUNTERS`."""

    batches: int = 0
    requests: int = 0
    rows: int = 0
    useful_tokens: int = 0
    padded_tokens: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0
    cancelled: int = 0
    expired: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


def of_batch(batch: Batch[Any], *, began_s: float, ended_s: float) -> Counts:
    """Return the counts of one batch."""
    waited_s = sum(began_s - waiter.since_s for waiter in batch.waiters)
    return Counts(1, len(batch.waiters), batch.rows, batch.useful, batch.padded, waited_s, ended_s - began_s)


class Tally:
    """Thread-safe accumulator of counts, which a reporter empties from time to time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()

    def add(self, counts: Counts) -> None:
        """Add counts."""
        with self._lock:
            self._counts += counts

    def take(self) -> Mapping[str, float]:
        """Return and reset the counts since the last call, by metric; empty if there were none."""
        with self._lock:
            counts, self._counts = self._counts, Counts()
        return dict(zip(COUNTERS, astuple(counts), strict=True)) if counts != Counts() else {}
