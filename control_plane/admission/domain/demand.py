"""How much tenants ask of all gateway processes together, as `admission/ports.DemandBoard` tells each of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

LIVE_S = 5.0
"""A process that has told nothing for so long counts no longer: it may miss some seconds, and one that died is soon made up for."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a process gets for its own demand: everybody's, its own included."""

    demand: Mapping[str, float]
    """Requests per second by tenant, of all live processes together."""
    processes: int
    """That are live."""


def exchange_of(demands: Collection[Mapping[str, float]]) -> Exchange:
    """One that sums up what each live process has told last."""
    total: dict[str, float] = {}
    for demand in demands:
        for tenant, rate in demand.items():
            total[tenant] = total.get(tenant, 0.0) + rate
    return Exchange(total, len(demands))
