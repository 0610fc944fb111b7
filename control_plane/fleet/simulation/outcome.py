"""What came of a simulation."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from math import ceil, nan


class Outcome:
    """Counted while it runs; read when it has ended."""

    __slots__ = ("_in_order", "_latencies_s", "evictions", "loads", "most_held_bytes", "refused", "rerouted")

    def __init__(self) -> None:
        self._latencies_s = array("d")
        self._in_order: list[float] = []
        self.refused = 0
        self.loads = 0
        self.evictions = 0
        """Models that were unloaded, for whatever reason."""
        self.rerouted = 0
        """Requests that were sent on because their server left."""
        self.most_held_bytes = 0
        """At one time, on the server that held most."""

    def answer(self, latency_s: float) -> None:
        """One more request has its answer, so long after it came."""
        self._latencies_s.append(latency_s)

    @property
    def answered(self) -> int:
        return len(self._latencies_s)

    @property
    def requests(self) -> int:
        return self.answered + self.refused

    def quantile_s(self, part: float) -> float:
        """The latency that this part of the answered requests kept to (nearest rank); NaN without any."""
        latencies = self._sorted()
        return latencies[max(0, ceil(part * len(latencies)) - 1)] if latencies else nan

    def part_within(self, limit_s: float) -> float:
        """Of all requests, refused ones too, those answered within it. What takes exactly as long is within."""
        # 1e-9: times are sums of floats.
        return bisect_right(self._sorted(), limit_s + 1e-9) / self.requests if self.requests else nan

    def _sorted(self) -> list[float]:
        if len(self._in_order) != len(self._latencies_s):
            self._in_order = sorted(self._latencies_s)
        return self._in_order
