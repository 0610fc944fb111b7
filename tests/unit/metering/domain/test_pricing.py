from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.metering.domain.pricing import price_in_force, report_rows
from control_plane.metering.domain.usage import Usage, UsageKey
from control_plane.metering.domain.usage_report import Dimension
from control_plane.objects.domain.price import Price


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def price(
    name: str, *, start: str = "2026-01-01", models: str = "*", tenant: str = "", per_unit: float = 1.0, currency: str = "EUR"
) -> Price:
    return Price(name, at(start), per_unit, currency, models, tenant)


KEY = UsageKey("2026-06-10", "acme", "text_encoder")


@pytest.mark.parametrize(
    ("prices", "name"),
    [
        pytest.param([], None, id="none at all"),
        pytest.param([price("a")], "a", id="everybody's for everything"),
        pytest.param([price("a", models="image_*")], None, id="of other models"),
        pytest.param([price("a", tenant="umbrella")], None, id="of another tenant"),
        pytest.param([price("a"), price("b", tenant="acme")], "b", id="the tenant's own"),
        pytest.param([price("a", models="text_encoder"), price("b", tenant="acme")], "b", id="the tenant's own before a closer glob"),
        pytest.param([price("a"), price("b", models="text_*")], "b", id="the closer glob"),
        pytest.param([price("a", start="2026-06-01"), price("b", models="text_*")], "b", id="the closer glob before a later price"),
        pytest.param([price("a", models="text_encode?"), price("b", models="text_encoder")], "b", id="a whole name"),
        pytest.param([price("a"), price("b", start="2026-06-01")], "b", id="the later one"),
        pytest.param([price("a"), price("b", start="2026-06-11")], "a", id="not one that has not begun"),
        pytest.param([price("a"), price("b", start="2026-06-10T00:00:00")], "b", id="one that begins with the day"),
        pytest.param([price("a"), price("b", start="2026-06-10T00:00:01")], "a", id="not one that begins within the day"),
        pytest.param([price("a", start="2026-06-10T12:00:00")], None, id="a first one that begins within the day"),
    ],
)
def test_which_price_is_in_force(prices: list[Price], name: str | None) -> None:
    for order in (prices, prices[::-1]):
        found = price_in_force(order, KEY)
        assert (found.name if found else None) == name


def use(units: float, requests: int = 1) -> Usage:
    return Usage(requests=requests, compute_units=units)


TOTALS = [
    (UsageKey("2026-06-01", "acme", "a"), use(10.0)),
    (UsageKey("2026-06-01", "umbrella", "a"), use(1.0)),
    (UsageKey("2026-06-02", "acme", "a"), use(10.0)),
    (UsageKey("2026-06-02", "acme", "b"), use(100.0)),
]


def test_tokens_cost_what_their_price_says_beside_compute_units() -> None:
    used = Usage(compute_units=10.0, input_tokens=1000, output_tokens=200)
    price = Price("tokens", 0.0, 0.5, "EUR", per_input_token=0.25, per_output_token=2.0)
    (row,) = report_rows([(KEY, used), (KEY, used)], [price], [])
    assert row.costs == {"EUR": 2 * (5.0 + 250.0 + 400.0)}
    (without,) = report_rows([(KEY, used)], [Price("units", 0.0, 0.5, "EUR")], [])
    assert without.costs == {"EUR": 5.0}


def test_costs_follow_prices_that_change() -> None:
    prices = [price("old", per_unit=2.0), price("new", start="2026-06-02", per_unit=3.0)]
    rows = report_rows(TOTALS, prices, [Dimension.DAY])
    assert [(row.group, row.costs) for row in rows] == [(("2026-06-01",), {"EUR": 22.0}), (("2026-06-02",), {"EUR": 330.0})]


def test_costs_are_told_by_currency_and_what_has_no_price_apart() -> None:
    prices = [price("a", models="a", currency="USD", per_unit=0.5), price("c", models="a", tenant="umbrella", currency="EUR", per_unit=7.0)]
    (row,) = report_rows(TOTALS, prices, [])
    assert (row.group, row.costs, row.unpriced_units) == ((), {"EUR": 7.0, "USD": 10.0}, 100.0)
    assert row.usage == use(121.0, requests=4)


def test_rows_are_the_combinations_that_were_used_in_order() -> None:
    rows = report_rows(TOTALS[::-1], [], [Dimension.MODEL, Dimension.TENANT])
    assert [(row.group, row.usage.compute_units) for row in rows] == [
        (("a", "acme"), 20.0),
        (("a", "umbrella"), 1.0),
        (("b", "acme"), 100.0),
    ]


def test_without_usage_there_are_no_rows() -> None:
    assert report_rows([], [price("a")], [Dimension.DAY]) == ()


_KEYS = st.builds(UsageKey, st.sampled_from(["2026-06-01", "2026-06-02"]), st.sampled_from("tu"), st.sampled_from("ab"))
_USED = st.builds(Usage, requests=st.integers(0, 9), compute_units=st.floats(0, 1e6))
_PRICES = st.lists(
    st.builds(
        price,
        st.text("xyz", min_size=1, max_size=3),
        start=st.sampled_from(["2026-05-01", "2026-06-02", "2026-07-01"]),
        models=st.sampled_from(["*", "a", "?"]),
        tenant=st.sampled_from(["", "t"]),
        per_unit=st.floats(0, 10),
        currency=st.sampled_from(["EUR", "USD"]),
    ),
    max_size=5,
)


@given(used=st.dictionaries(_KEYS, _USED), prices=_PRICES, by=st.lists(st.sampled_from(Dimension), unique=True))
def test_however_rows_are_divided_they_add_up_to_the_same(used: dict[UsageKey, Usage], prices: list[Price], by: list[Dimension]) -> None:
    rows = report_rows(used.items(), prices, by)
    assert [row.group for row in rows] == sorted({tuple(getattr(key, each) for each in by) for key in used})
    whole = report_rows(used.items(), prices, [])
    for currency in ("EUR", "USD"):
        parts = sum(row.costs.get(currency, 0.0) for row in rows)
        assert parts == pytest.approx(sum(row.costs.get(currency, 0.0) for row in whole))
    assert sum(row.unpriced_units for row in rows) == pytest.approx(sum(row.unpriced_units for row in whole))
    assert sum(row.usage.requests for row in rows) == sum(usage.requests for usage in used.values())
