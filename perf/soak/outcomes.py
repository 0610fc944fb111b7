"""What became of each request, and the figures that are made of it: pure, so that they can be checked without servers."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Any

import numpy as np

DEADLINE_S = 1.0
NORMAL_TIMES = 2.0
"""A second is as normal as before a spike if its p99 is at most so many times the one before."""
_NORMAL_SECONDS = 3
"""Normal seconds in a row before the spike is said to be over."""


class Outcome(IntEnum):
    ANSWERED = 0
    """It was answered rightly, within its deadline or not."""
    REFUSED = 1
    """It was refused politely: 429 or 503 with Retry-After, RESOURCE_EXHAUSTED or UNAVAILABLE."""
    LEFT = 2
    """Its caller left before it was answered."""
    EXPIRED = 3
    """504, DEADLINE_EXCEEDED, or no answer to a caller who waits a while beyond its deadline."""
    UNSENT = 4
    """The client had no free connection, or no time, until its deadline."""
    ERROR = 5
    """Anything else became of it."""


class Journal:
    """Record of every request, in the order of their ends."""

    def __init__(self) -> None:
        self._due_s, self._latency_ms, self._late_ms = array("d"), array("f"), array("f")
        self._outcome, self._is_cold = array("b"), array("b")
        self.said: Counter[str] = Counter()
        """Texts of errors and refusals, of one kind in one phase."""

    def add(self, due_s: float, sent_s: float, ended_s: float, outcome: Outcome, *, is_cold: bool = False) -> None:
        """Note what became of a request; all three times are seconds since the soak began."""
        self._due_s.append(due_s)
        self._late_ms.append(1e3 * (sent_s - due_s))
        self._latency_ms.append(1e3 * (ended_s - due_s))
        self._outcome.append(outcome)
        self._is_cold.append(is_cold)

    def closed(self) -> Requests:
        columns = (self._due_s, self._latency_ms, self._late_ms, self._outcome, self._is_cold)
        due_s, latency_ms, late_ms, outcome, is_cold = (np.array(each) for each in columns)
        return Requests(due_s, latency_ms, late_ms, outcome, is_cold.astype(bool), dict(self.said))


@dataclass(frozen=True, slots=True)
class Requests:
    """What became of the requests of a soak, or of a part of it: arrays with an entry for each."""

    due_s: Any
    latency_ms: Any
    """From when it was due, so that a client that is late itself hides nothing."""
    late_ms: Any
    """How much later than planned the client sent it."""
    outcome: Any
    is_cold: Any
    """Whether it asked for a model that is mostly not loaded."""
    said: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.due_s)

    def due(self, from_s: float, to_s: float) -> Requests:
        return self._where((self.due_s >= from_s) & (self.due_s < to_s))

    def cold(self) -> Requests:
        return self._where(self.is_cold)

    def hot(self) -> Requests:
        return self._where(~self.is_cold)

    def count(self, *outcomes: Outcome) -> int:
        return int(np.isin(self.outcome, outcomes).sum())

    def in_time(self) -> int:
        """Answers within the deadline."""
        return int(((self.outcome == Outcome.ANSWERED) & (self.latency_ms <= 1e3 * DEADLINE_S)).sum())

    def percentile_ms(self, percent: float) -> float:
        """Percentile of the answers' latencies; NaN where there is none."""
        return _percentile(self.latency_ms[self.outcome == Outcome.ANSWERED], percent)

    def refusal_ms(self, percent: float) -> float:
        return _percentile(self.latency_ms[self.outcome == Outcome.REFUSED], percent)

    def client_late_ms(self, percent: float) -> float:
        return _percentile(self.late_ms, percent)

    def _where(self, chosen: Any) -> Requests:
        return Requests(*(each[chosen] for each in (self.due_s, self.latency_ms, self.late_ms, self.outcome, self.is_cold)))


def windows(from_s: float, to_s: float, length_s: float) -> list[tuple[float, float]]:
    """Spans of about this length, one after the other, at least one."""
    count = max(1, round((to_s - from_s) / length_s))
    edges = np.linspace(from_s, to_s, count + 1).tolist()
    return list(pairwise(edges))


def normal_after_s(requests: Requests, *, spike_ends_s: float, soak_ends_s: float, before_ms: float) -> float:
    """Whole seconds from the end of a spike until p99 is normal for three seconds in a row; until the soak ends, if it never is."""
    seconds = int(soak_ends_s - spike_ends_s)
    p99s_ms = [requests.due(spike_ends_s + each, spike_ends_s + each + 1).percentile_ms(99) for each in range(seconds)]
    is_normal = [each <= NORMAL_TIMES * before_ms for each in p99s_ms]
    return float(next((at for at in range(seconds) if all(is_normal[at : at + _NORMAL_SECONDS])), seconds))


def _percentile(values: Any, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else float("nan")
