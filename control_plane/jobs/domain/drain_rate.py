"""When there will be room for another job: by how fast jobs have ended lately. Pure; called by `jobs/jobs`."""

from __future__ import annotations

from dataclasses import dataclass, field

_WINDOW_S = 2.0
_UNKNOWN_S = 5.0
"""Wait that is told while nothing has been measured."""
_SOONEST_S, _LATEST_S = 1.0, 600.0
_MOST_TENANTS = 1000


@dataclass(slots=True)
class _Drain:
    """Rate at which jobs end, and until when room was promised to others that were refused."""

    ended: int
    since_s: float
    rate: float | None = None
    promised_s: float = 0.0


@dataclass(slots=True)
class DrainRate:
    """Estimator of when a refused caller will find room.

    Each is promised a place of its own, one after the other: were all told the same time, one would find it true.
    """

    _of: dict[str | None, _Drain] = field(default_factory=dict)

    def promise(self, tenant: str | None, *, ended: int, now_s: float) -> float:
        """Return in how many seconds to come again; `ended` counts all that ended so far. None: of all tenants."""
        drain = self._of.get(tenant)
        if drain is None:
            if len(self._of) >= _MOST_TENANTS:
                self._of.clear()
            drain = self._of[tenant] = _Drain(ended, now_s)
        if now_s - drain.since_s >= _WINDOW_S:
            drain.rate = (ended - drain.ended) / (now_s - drain.since_s)
            drain.ended, drain.since_s = ended, now_s
        if drain.rate is None:
            return _UNKNOWN_S
        if drain.rate <= 0:
            return min(_LATEST_S, 2 * _UNKNOWN_S)
        drain.promised_s = min(max(drain.promised_s, now_s) + 1 / drain.rate, now_s + _LATEST_S)
        return max(_SOONEST_S, drain.promised_s - now_s)
