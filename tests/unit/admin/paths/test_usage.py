from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from control_plane.metering.domain.usage import Usage, UsageKey
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from tests.aio import run
from tests.unit.admin.admin_bench import Bench

NOTHING = {
    "failed": 0,
    "refused": 0,
    "rows": 0,
    "elements": 0,
    "cache_hits": 0,
    "input_tokens": 0,
    "output_tokens": 0,
    "unpriced_units": 0.0,
}


def day(ago: int) -> str:
    return (datetime.now(UTC).date() - timedelta(days=ago)).isoformat()


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.usage.usage.sums = {
        UsageKey(day(0), "acme", "a"): Usage(requests=1, compute_units=10.0),
        UsageKey(day(1), "acme", "b"): Usage(requests=2, compute_units=20.0),
        UsageKey(day(1), "umbrella", "a"): Usage(requests=4, compute_units=40.0),
        UsageKey(day(8), "", "a"): Usage(requests=8, compute_units=80.0),
        UsageKey(day(9), "acme", "(unknown)"): Usage(requests=16),
    }
    run(bench.store.put(Kind.PRICE, "p", to_body(Price("p", 0.0, 0.5, "EUR"))))
    run(bench.known.start())
    return bench


def rows(bench: Bench, query: str) -> list[dict[str, Any]]:
    status, body = bench.ask("GET", f"/usage?{query}")
    assert status == 200, body
    found: list[dict[str, Any]] = body["rows"]
    return found


def test_the_last_week_by_tenant_and_day(bench: Bench) -> None:
    status, body = bench.ask("GET", "/usage")
    assert (status, body["by"], body["since"], body["until"]) == (200, ["tenant", "day"], day(7), day(0))
    assert body["rows"] == [
        NOTHING | {"tenant": "acme", "day": day(1), "requests": 2, "compute_units": 20.0, "costs": {"EUR": 10.0}},
        NOTHING | {"tenant": "acme", "day": day(0), "requests": 1, "compute_units": 10.0, "costs": {"EUR": 5.0}},
        NOTHING | {"tenant": "umbrella", "day": day(1), "requests": 4, "compute_units": 40.0, "costs": {"EUR": 20.0}},
    ]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_by_pages(bench: Bench, form: str) -> None:
    whole = bench.response("GET", f"/usage?format={form}")
    first = bench.response("GET", f"/usage?format={form}&limit=2")
    second = bench.response("GET", first.links["next"]["url"])
    assert "link" not in second.headers
    if form == "json":
        assert first.json()["rows"] + second.json()["rows"] == whole.json()["rows"]
    else:
        header, *lines = whole.text.splitlines()
        assert first.text.splitlines() == [header, *lines[:2]]
        assert second.text.splitlines() == [header, *lines[2:]]


@pytest.mark.parametrize(
    ("query", "requests"),
    [
        ("by=", [7]),
        ("by=model", [5, 2]),
        ("by=model&model=(unknown)&since=30d", [16]),
        ("by=day,model", [4, 2, 1]),
        ("by=&since=30d", [31]),
        ("by=&since=today", [1]),
        ("by=&until=1d", [6]),
        ("by=&tenant=acme", [3]),
        ("by=&tenant=&since=30d", [8]),
        ("by=&model=a", [5]),
        ("by=&model=a&tenant=acme", [1]),
        ("by=&tenant=nobody", []),
    ],
)
def test_what_is_asked_for(bench: Bench, query: str, requests: list[int]) -> None:
    assert [row["requests"] for row in rows(bench, query)] == requests


def test_a_row_has_what_it_was_asked_to_tell_apart(bench: Bench) -> None:
    assert {"tenant", "model", "day"} & rows(bench, "by=model")[0].keys() == {"model"}


def test_dates_are_days(bench: Bench) -> None:
    assert [row["requests"] for row in rows(bench, f"by=&since={day(1)}&until={day(1)}")] == [6]


def test_as_csv(bench: Bench) -> None:
    response = bench.response("GET", "/usage?by=tenant&format=csv")
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert [line.split(",")[:2] for line in response.text.splitlines()] == [["tenant", "requests"], ["acme", "3"], ["umbrella", "4"]]
    assert response.text.splitlines()[0].endswith(",cost_EUR")


def test_a_price_that_is_made_later_prices_the_past(bench: Bench) -> None:
    run(bench.store.delete(Kind.PRICE, "p"))
    run(bench.known.start())
    assert [(row["costs"], row["unpriced_units"]) for row in rows(bench, "by=")] == [({}, 70.0)]
    run(bench.store.put(Kind.PRICE, "q", to_body(Price("q", 0.0, 1.0, "USD"))))
    run(bench.known.start())
    assert [(row["costs"], row["unpriced_units"]) for row in rows(bench, "by=")] == [({"USD": 70.0}, 0.0)]


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("by=key", "query.by"),
        ("by=tenant,tenant", "at most once"),
        ("since=yesterday", "query.since"),
        ("since=2026-02-30", "2026-02-30"),
        ("since=99999999d", "query.since"),
        ("since=today&until=3d", "is after until"),
        ("until=", "query.until"),
        ("tenant=a%20b", "query.tenant"),
        ("model=%00", "query.model"),
        ("format=xml", "query.format"),
        ("sort=cost", "query.sort"),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(bench: Bench, query: str, where: str) -> None:
    status, body = bench.ask("GET", f"/usage?{query}")
    assert (status, body["code"]) == (400, "invalid_argument")
    assert where in body["error"]
