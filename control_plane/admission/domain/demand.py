"""Demand of tenants over all gateway processes, as processes exchange it through
`admission/ports.DemandBoard`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

LIVE_S = 5.0
"""Seconds without an exchange after which a process is taken to be gone. A live one may miss a few exchanges
(they are a second apart), and the share of one that died soon goes to the others.
"""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Result of an exchange: the demand of all live processes, the asking one included."""

    demand: Mapping[str, float]
    """Requests per second by tenant, of all live processes together."""
    processes: int
    """Number of live processes."""


def exchange_of(demands: Collection[Mapping[str, float]]) -> Exchange:
    """Sum up what each live process published last."""
    total: dict[str, float] = {}
    for demand in demands:
        for tenant, rate in demand.items():
            total[tenant] = total.get(tenant, 0.0) + rate
    return Exchange(total, len(demands))
