"""Which part of a tenant's limits each gateway process enforces, so that together they enforce about the whole."""

from __future__ import annotations

from collections.abc import Mapping

# Of an equal part, which a process keeps without any demand: the first requests that reach it find room.
_FLOOR = 0.25

# Long enough that a tenant's pauses do not take its part away, short enough that a part follows its requests in a few seconds.
_HALF_LIFE_S = 1.0

# Requests per second that count as none: what was asked once is forgotten in seven half-lives.
_NONE = 0.01


def share(own_demand: float, total_demand: float, processes: int) -> float:
    """The part of one of `processes`, above 0 and at most 1; the parts of all sum up to 1.

    In proportion to recent demand (requests that came, admitted or not; `total_demand` with its own), above a floor.
    """
    wanted = min(1.0, own_demand / total_demand) if total_demand > 0 else 1.0 / processes
    return _FLOOR / processes + (1.0 - _FLOOR) * wanted


def recent_demand(before: Mapping[str, float], requests: Mapping[str, int], elapsed_s: float) -> dict[str, float]:
    """Requests per second by tenant, the latest weighted most: what it was `elapsed_s` ago, and the requests since; 0 is left out."""
    if elapsed_s <= 0:
        return dict(before)
    kept = 0.5 ** (elapsed_s / _HALF_LIFE_S)
    rates = {
        tenant: kept * before.get(tenant, 0.0) + (1.0 - kept) * requests.get(tenant, 0) / elapsed_s
        for tenant in before.keys() | requests.keys()
    }
    return {tenant: rate for tenant, rate in rates.items() if rate >= _NONE}
