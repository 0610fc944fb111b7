"""Division of a tenant's limits among gateway processes: each enforces a share, and together they enforce
about the whole.

Pure; called by `admission/tenant_shares`.
"""

from __future__ import annotations

from collections.abc import Mapping

# A process without any demand keeps this part of an equal share, so that the first requests to reach it are
# admitted.
_FLOOR = 0.25

# Long enough that a tenant's pauses do not take its share away, short enough that a share follows its
# requests in a few seconds.
_HALF_LIFE_S = 1.0

# Requests per second below which demand counts as none: a single request is forgotten after seven half-lives.
_NONE = 0.01


def share(own_demand: float, total_demand: float, processes: int) -> float:
    """Return one process's share of a tenant's limits, above 0 and at most 1; the shares of all `processes`
    sum up to 1.

    Above a floor a share is in proportion to recent demand, in requests per second, admitted or not;
    `total_demand` includes `own_demand`.
    """
    wanted = min(1.0, own_demand / total_demand) if total_demand > 0 else 1.0 / processes
    return _FLOOR / processes + (1.0 - _FLOOR) * wanted


def recent_demand(before: Mapping[str, float], requests: Mapping[str, int], elapsed_s: float) -> dict[str, float]:
    """Return the demand by tenant as an exponential moving average, in requests per second; tenants without
    demand are left out.

    `before` is the average of `elapsed_s` ago, `requests` those that came since.
    """
    if elapsed_s <= 0:
        return dict(before)
    kept = 0.5 ** (elapsed_s / _HALF_LIFE_S)
    rates = {
        tenant: kept * before.get(tenant, 0.0) + (1.0 - kept) * requests.get(tenant, 0) / elapsed_s
        for tenant in before.keys() | requests.keys()
    }
    return {tenant: rate for tenant, rate in rates.items() if rate >= _NONE}
