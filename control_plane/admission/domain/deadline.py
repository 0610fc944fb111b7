"""How long a request would wait for its turn, from what a model got done lately; asked by `admission/concurrency_slots`.

By Little's law: with all of a model's slots taken, work is done at `slots / (seconds in a slot per unit of cost)`. While a
model has slots to spare this promises more than it can do, so that too few are refused rather than too many.
"""

from __future__ import annotations

from dataclasses import dataclass

# What the newest request counts: about the last 40 decide, a fraction of a second of a busy model.
_NEWEST = 0.05


@dataclass(slots=True)
class Pace:
    """Exponentially weighted means over the requests that have ended. Never changed, but not frozen: each request makes one."""

    cost: float = 0.0
    held_s: float = 0.0

    def after(self, cost: float, held_s: float) -> Pace:
        """With one more, which held its slot so long."""
        if self.cost == 0.0:
            return Pace(cost, held_s)
        return Pace(self.cost + _NEWEST * (cost - self.cost), self.held_s + _NEWEST * (held_s - self.held_s))


def time_needed_s(pace: Pace, *, ahead: float, cost: float, slots: int) -> float | None:
    """Seconds until a request's answer, with work of the cost `ahead` before it; None where nothing was measured yet."""
    if pace.cost == 0.0:
        return None
    return ((ahead + cost) / slots + cost) * pace.held_s / pace.cost


def can_be_met(deadline_s: float, *, now_s: float, needed_s: float | None) -> bool:
    """Whether a request that needs so long can be answered in time; what is not known is tried."""
    return needed_s is None or now_s + needed_s <= deadline_s
