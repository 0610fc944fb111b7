"""Shares of the latest turns at a busy model, by tenant: what the requests of one that wait now can count on. Pure; each
priority of `admission/domain/fair_queue` has one.

What will be served before a request is not only what waits: tenants whose requests hardly wait, since their deadlines
are short or they are within their share, send the next ones meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

_REMEMBERED = 50
"""Turns for which a tenant counts after its last; their inverse is the weight of the newest in what each one got."""


@dataclass(frozen=True, slots=True)
class _Got:
    """Share of one tenant in the turns that were given lately."""

    served: float
    """Exponentially weighted mean of what the tenant got of each turn, as of the turn `at`."""
    at: int
    weight: float


class RecentTurns:
    """Exponentially weighted shares of tenants in what was served of late; each operation takes O(1)."""

    __slots__ = ("_got", "_total", "_turns", "_weights")

    def __init__(self) -> None:
        self._turns = 0
        self._total = 0.0
        """Exponentially weighted mean of what all tenants got of each turn."""
        self._got: OrderedDict[str, _Got] = OrderedDict()
        """What each tenant with one of the remembered turns got; the tenant whose last turn is longest ago is first."""
        self._weights = 0.0
        """Sum of the weights of the tenants in `_got`."""

    def served(self, tenant: str, weight: float, cost: float) -> None:
        """Note a turn in which a request of the tenant was served."""
        self._turns += 1
        self._total += (cost - self._total) / _REMEMBERED
        served = self._served(tenant) + cost / _REMEMBERED
        self._forget(tenant)
        self._got[tenant] = _Got(served, self._turns, weight)
        self._weights += weight
        while self._got[oldest := next(iter(self._got))].at <= self._turns - _REMEMBERED:
            self._forget(oldest)

    def least_share(self, tenant: str, weight: float) -> float:
        """Estimate the least part of what is served that a tenant gets while its requests wait: what it got of late, or
        its part by weights among those who got something, whichever is more. 1 where nobody else did.
        """
        own = self._got.get(tenant)
        others = self._weights - (own.weight if own is not None else 0.0)
        fair = weight / (weight + max(0.0, others))
        return max(fair, self._served(tenant) / self._total) if self._total else fair

    def _served(self, tenant: str) -> float:
        got = self._got.get(tenant)
        return 0.0 if got is None else got.served * (1 - 1 / _REMEMBERED) ** (self._turns - got.at)

    def _forget(self, tenant: str) -> None:
        got = self._got.pop(tenant, None)
        if got is not None:
            self._weights = self._weights - got.weight if self._got else 0.0
