"""Budgets of one request: what its answer may take and cost, by which one of a route's models is chosen. Pure; read by
`inference/routes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from control_plane.core.errors import InvalidRequest
from control_plane.objects.domain.route import Route

LATENCY_HEADER = "tidegate-latency-budget-ms"
"""Request header (HTTP) or metadata (gRPC): milliseconds within which the caller wants an answer, if need be by a faster
and less accurate model of the route."""
_MOST_MS = 24 * 3600 * 1000
COST_HEADER = "tidegate-cost-budget-units"
"""Request header (HTTP) or metadata (gRPC): compute units that the caller wants an answer to cost at most, if need be by a
cheaper and less accurate model of the route."""
_LEAST_UNITS, _MOST_UNITS = 0.001, 1e9
"""Smallest and largest cost budget, in compute units: those that a route may have (`admin/schema/views.RouteSpec`)."""
_UNITS = re.compile(r"[0-9]{1,10}(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class Budgets:
    """Budgets of one request."""

    latency_s: float | None = None
    """Seconds within which its caller wants an answer; None: however long it takes."""
    cost_units: float | None = None
    """Compute units that an answer is to cost at most; None: whatever it costs."""


def budgets_of(field: Callable[[str], str | None], route: Route) -> Budgets | None:
    """Return the budgets of a request with these header fields: those that they name, else its route's; None: it has none.

    Raises InvalidRequest.
    """
    latency, cost = field(LATENCY_HEADER), field(COST_HEADER)
    latency_s = route.latency_budget_s if latency is None else _latency_s(latency)
    cost_units = route.cost_budget_units if cost is None else _cost_units(cost)
    return None if latency_s is None and cost_units is None else Budgets(latency_s, cost_units)


def _latency_s(text: str) -> float:
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(_MOST_MS)) or not 0 < int(text) <= _MOST_MS:
        raise InvalidRequest(f"{LATENCY_HEADER} must be a whole number of milliseconds up to a day, got {text[:100]!r}")
    return int(text) / 1000


def _cost_units(text: str) -> float:
    if not _UNITS.fullmatch(text) or not _LEAST_UNITS <= float(text) <= _MOST_UNITS:
        raise InvalidRequest(
            f"{COST_HEADER} must be a number of compute units from {_LEAST_UNITS:g} to {_MOST_UNITS:.0f}, such as 2.5, got {text[:100]!r}"
        )
    return float(text)
