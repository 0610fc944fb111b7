"""Budgets of requests: what their header fields say, or else their route."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.inference.domain.budgets import COST_HEADER, LATENCY_HEADER, Budgets, budgets_of
from control_plane.objects.domain.route import FasterModel, Route

ROUTE = Route("r", "large", faster=(FasterModel("small"),), latency_budget_s=0.2, cost_budget_units=8.0)


def budgets(**fields: str) -> Budgets | None:
    """The budgets of a request by its header fields, named `latency` and `cost`."""
    named = {LATENCY_HEADER: fields.get("latency"), COST_HEADER: fields.get("cost")}
    return budgets_of(lambda name: named[name], ROUTE)


def test_a_request_without_a_budget_has_its_routes() -> None:
    assert budgets() == Budgets(0.2, 8.0)
    assert budgets(latency="50") == Budgets(0.05, 8.0)
    assert budgets(cost="2.5") == Budgets(0.2, 2.5)
    assert budgets(latency="50", cost="0.001") == Budgets(0.05, 0.001)
    assert budgets_of(lambda _: None, replace(ROUTE, latency_budget_s=None, cost_budget_units=None)) is None


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "50ms", "1e3", "9" * 9, "\u0665\u0660", " 50"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="tidegate-latency-budget-ms must be a whole number of milliseconds up to a day"):
        budgets(latency=text)


@pytest.mark.parametrize("text", ["1", "0.001", "007", "12.5", "1000000000", "999999999.999999999"])
def test_a_cost_budget_may_have_decimals(text: str) -> None:
    found = budgets(cost=text)
    assert found is not None
    assert found.cost_units == float(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " 5",
            "5 ",
            "5\n",
            "5\0",
            "+5",
            "-1",
            "-0",
            "0",
            "0.0",
            "0.0009",
            "1000000000.1",
            "9" * 4000,
            "1" + "0" * 308,
            "1." + "0" * 4000,
        ),
        *("nan", "inf", "-inf", "1e3", "1e308", "0x10", "1_000", "1,5", "5, 5", "1.", ".5", "1.2.3", "5 units", "none", "\u0665"),
    ],
)
def test_what_is_no_cost_budget_is_refused(text: str) -> None:
    said = r"tidegate-cost-budget-units must be a number of compute units from 0\.001 to 1000000000, such as 2\.5, got '.{0,120}'$"
    with pytest.raises(InvalidRequest, match=said):
        budgets(cost=text)
