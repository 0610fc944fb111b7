"""Budgets of one request: what its answer may take, by which one of a route's models is chosen. Pure; read by `inference/routes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from control_plane.core.errors import InvalidRequest
from control_plane.objects.domain.route import Route

LATENCY_HEADER = "tidegate-latency-budget-ms"
"""Request header (HTTP) or metadata (gRPC): milliseconds within which the caller wants an answer, if need be by a faster
and less accurate model of the route."""
_MOST_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Budgets:
    """Budgets of one request."""

    latency_s: float
    """Seconds within which its caller wants an answer."""


def budgets_of(field: Callable[[str], str | None], route: Route) -> Budgets | None:
    """Return the budgets of a request with these header fields: those that they name, else its route's; None: it has none.

    Raises InvalidRequest.
    """
    text = field(LATENCY_HEADER)
    latency_s = route.latency_budget_s if text is None else _latency_s(text)
    return None if latency_s is None else Budgets(latency_s)


def _latency_s(text: str) -> float:
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(_MOST_MS)) or not 0 < int(text) <= _MOST_MS:
        raise InvalidRequest(f"{LATENCY_HEADER} must be a whole number of milliseconds up to a day, got {text[:100]!r}")
    return int(text) / 1000
