"""Budgets of requests: what their header fields say, or else their route."""

from __future__ import annotations

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.inference.domain.budgets import LATENCY_HEADER, Budgets, budgets_of
from control_plane.objects.domain.route import FasterModel, Route

ROUTE = Route("r", "large", faster=(FasterModel("small"),), latency_budget_s=0.2)


def budgets(**fields: str) -> Budgets | None:
    """The budgets of a request by its header fields, named `latency`."""
    named = {LATENCY_HEADER: fields.get("latency")}
    return budgets_of(lambda name: named[name], ROUTE)


def test_a_request_without_a_budget_has_its_routes() -> None:
    assert budgets() == Budgets(0.2)
    assert budgets(latency="50") == Budgets(0.05)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "50ms", "1e3", "9" * 9, "\u0665\u0660", " 50"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="tidegate-latency-budget-ms must be a whole number of milliseconds up to a day"):
        budgets(latency=text)
