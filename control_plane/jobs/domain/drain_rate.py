"""When there will be room for another job: by how fast jobs have ended lately. Pure; called by `jobs/jobs`."""

from __future__ import annotations

from dataclasses import dataclass, field

_WINDOW_S, _LONGEST_WINDOW_S = 2.0, 120.0
_ENOUGH = 10
"""Jobs by whose end a rate is measured: of fewer, where each takes seconds, it is that of chance."""
_UNKNOWN_S = 5.0
"""Least wait that is told while nothing has been measured; it grows with the time for which nothing is."""
_SOONEST_S, _LATEST_S = 1.0, 600.0
_MOST_TENANTS = 1000


@dataclass(slots=True)
class _Drain:
    """Rate at which jobs end, and until when room was promised to others that were refused."""

    ended: int
    since_s: float
    rate: float = 0.0
    """Jobs a second, as last measured; 0 while nothing has been."""
    promised_s: float = 0.0

    def measured(self, ended: int, now_s: float) -> float:
        """Return the rate, measured anew once enough have ended since it was last; at first that of the few so far."""
        count, elapsed_s = ended - self.ended, now_s - self.since_s
        if elapsed_s < _WINDOW_S:
            return self.rate
        rate = count / elapsed_s
        if count >= _ENOUGH or elapsed_s >= _LONGEST_WINDOW_S:
            self.rate = rate
            if count:
                self.ended, self.since_s = ended, now_s
        return self.rate or rate


@dataclass(slots=True)
class DrainRate:
    """Estimator of when a refused caller will find room.

    Each is promised a place of its own, one after the other: were all told the same time, one would find it true.
    """

    _of: dict[str | None, _Drain] = field(default_factory=dict)

    def promise(self, tenant: str | None, *, ended: int, now_s: float, processes: int = 1) -> float:
        """Return in how many seconds to come again; `ended` counts all that ended so far. None: of all tenants. So many
        `processes` refuse callers side by side, and each promises its part of the places.
        """
        drain = self._of.get(tenant)
        if drain is None:
            if len(self._of) >= _MOST_TENANTS:
                self._of.clear()
            drain = self._of[tenant] = _Drain(ended, now_s)
        rate = drain.measured(ended, now_s)
        if rate <= 0:
            return min(_LATEST_S, max(_UNKNOWN_S, now_s - drain.since_s))
        drain.promised_s = min(max(drain.promised_s, now_s) + processes / rate, now_s + _LATEST_S)
        return max(_SOONEST_S, drain.promised_s - now_s)
