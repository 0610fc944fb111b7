"""Result of a simulation: latencies and counts."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from math import ceil, nan

from control_plane.fleet.domain.counts import Hedge


class SimulationResult:
    """Latencies and counts of one run, collected while it runs and read when it has ended."""

    __slots__ = (
        "_in_order",
        "_latencies_s",
        "computed_s",
        "evictions",
        "executions",
        "hedges",
        "loads",
        "max_held_bytes",
        "prefetches",
        "prefetches_used",
        "refused",
        "rerouted",
        "waited_for_loads_s",
    )

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all that was counted."""
        self._latencies_s = array("d")
        self._in_order: list[float] = []
        self.refused = 0
        self.executions = 0
        """Requests that servers began to work on; one that was sent to two counts twice."""
        self.computed_s = 0.0
        """Seconds that they worked, also for nobody."""
        self.hedges: Counter[Hedge] = Counter()
        """Requests that were late enough to be hedged."""
        self.loads = 0
        self.waited_for_loads_s = 0.0
        """Seconds that requests waited at servers until their model was ready there, all together."""
        self.prefetches = 0
        """Loads that began ahead of demand."""
        self.prefetches_used = 0
        """Loads ahead of demand whose replica has had a request."""
        self.evictions = 0
        """Models that were unloaded, for whatever reason."""
        self.rerouted = 0
        """Requests that were sent on because their server left."""
        self.max_held_bytes = 0
        """The most memory that any one server held at a time."""

    def answer(self, latency_s: float) -> None:
        """Count a request that was answered, with its latency."""
        self._latencies_s.append(latency_s)

    @property
    def answered(self) -> int:
        return len(self._latencies_s)

    @property
    def requests(self) -> int:
        return self.answered + self.refused

    def quantile_s(self, part: float) -> float:
        """The latency in seconds that this part of the answered requests did not exceed (nearest rank); NaN
        if there are none."""
        latencies = self._sorted()
        return latencies[max(0, ceil(part * len(latencies)) - 1)] if latencies else nan

    def part_within(self, limit_s: float) -> float:
        """The part of all requests, including refused ones, that was answered within this time, inclusive;
        NaN without requests."""
        # The tolerance is for sums of floats: what takes exactly `limit_s` is within it.
        return bisect_right(self._sorted(), limit_s + 1e-9) / self.requests if self.requests else nan

    def _sorted(self) -> list[float]:
        if len(self._in_order) != len(self._latencies_s):
            self._in_order = sorted(self._latencies_s)
        return self._in_order
