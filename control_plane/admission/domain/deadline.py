"""Deadline-aware load shedding: whether a request can be answered in time, from the model's recent
throughput.

By Little's law, with all of a model's slots taken, its throughput is `slots / (seconds in a slot per unit of
cost)`. While slots are free this overestimates the throughput, so that too few requests are refused rather
than too many.

Pure; called by `admission/concurrency_limiter`.
"""

from __future__ import annotations

from dataclasses import dataclass

# Weight of the newest request: the last 40 or so make up most of the mean, a fraction of a second of a busy
# model.
_NEWEST = 0.05


@dataclass(slots=True)
class ServiceRate:
    """Exponentially weighted means over the requests that have ended. An immutable value; it is not declared
    frozen, since each request makes one and a frozen dataclass is slower to make.
    """

    cost: float = 0.0
    held_s: float = 0.0
    """Seconds that a request held its slot."""

    def after(self, cost: float, held_s: float) -> ServiceRate:
        """Return the means with one more request, which held its slot for `held_s`."""
        if self.cost == 0.0:
            return ServiceRate(cost, held_s)
        return ServiceRate(self.cost + _NEWEST * (cost - self.cost), self.held_s + _NEWEST * (held_s - self.held_s))


def time_needed_s(pace: ServiceRate, *, ahead: float, cost: float, slots: int) -> float | None:
    """Estimate the seconds until a request's answer, with work of the cost `ahead` before it; None if nothing
    was measured yet.
    """
    if pace.cost == 0.0:
        return None
    # First the work ahead and its own share of the slots, then its own time in one slot.
    return ((ahead + cost) / slots + cost) * pace.held_s / pace.cost


def can_be_met(deadline_s: float, *, now_s: float, needed_s: float | None) -> bool:
    """Whether a request that needs `needed_s` can be answered in time; one whose time is unknown (None) is
    admitted.
    """
    return needed_s is None or now_s + needed_s <= deadline_s
