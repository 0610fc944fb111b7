from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from control_plane.core.errors import InvalidRequest, StoreUnavailable
from control_plane.metering.domain.usage import Usage, UsageKey
from control_plane.metering.domain.usage_report import Dimension, UsageReport
from control_plane.metering.reports import UsageService
from control_plane.objects.domain.price import Price
from tests.aio import run
from tests.fakes.stores.usage_store import FakeUsage, FakeUsageStore

TOTALS = [
    (UsageKey("2026-06-01", "acme", "a"), Usage(requests=1, compute_units=10.0)),
    (UsageKey("2026-06-02", "acme", "b"), Usage(requests=2, compute_units=20.0)),
    (UsageKey("2026-06-02", "umbrella", "a"), Usage(requests=4, compute_units=40.0)),
]


def store(*, is_away: bool = False) -> FakeUsageStore:
    return FakeUsageStore(FakeUsage(dict(TOTALS)), is_away=is_away)


def report(*by: Dimension, since_day: str = "2026-06-01", until_day: str = "2026-06-30", **only: str) -> UsageReport:
    prices = [Price("p", 0.0, 0.5, "EUR")]
    return run(UsageService(store(), lambda: prices).report(by=by, since_day=since_day, until_day=until_day, **only))


def test_tells_usage_and_cost_by_what_is_asked_for() -> None:
    found = report(Dimension.TENANT)
    assert (found.by, found.since_day, found.until_day) == ((Dimension.TENANT,), "2026-06-01", "2026-06-30")
    assert [(row.group, row.usage.requests, row.costs) for row in found.rows] == [
        (("acme",), 3, {"EUR": 15.0}),
        (("umbrella",), 4, {"EUR": 20.0}),
    ]


@pytest.mark.parametrize(
    ("asked", "requests"),
    [
        ({}, 7),
        ({"since_day": "2026-06-02"}, 6),
        ({"until_day": "2026-06-01"}, 1),
        ({"tenant": "acme"}, 3),
        ({"model": "a"}, 5),
        ({"tenant": "acme", "model": "a"}, 1),
    ],
)
def test_counts_only_what_is_asked_for(asked: dict[str, str], requests: int) -> None:
    (row,) = report(**asked).rows
    assert row.usage.requests == requests


def test_a_tenant_without_usage_has_no_rows() -> None:
    assert report(tenant="nobody").rows == ()


async def test_prices_are_those_of_the_moment_it_is_asked() -> None:
    prices: list[Price] = []
    service = UsageService(store(), lambda: prices)

    before = await service.report(by=(), since_day="2026-06-01", until_day="2026-06-30")
    prices.append(Price("p", 0.0, 1.0, "EUR"))
    reports = [before, await service.report(by=(), since_day="2026-06-01", until_day="2026-06-30")]
    assert [(each.rows[0].costs, each.rows[0].unpriced_units) for each in reports] == [({}, 70.0), ({"EUR": 70.0}, 0.0)]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="since 2026-06-02 is after until 2026-06-01"):
        report(since_day="2026-06-02", until_day="2026-06-01")
    with pytest.raises(InvalidRequest, match="at most once"):
        report(Dimension.DAY, Dimension.DAY)


def test_a_store_that_is_away_is_told() -> None:
    with pytest.raises(StoreUnavailable):
        run(UsageService(store(is_away=True), list).report(by=(), since_day="2026-06-01", until_day="2026-06-01"))


class NotingTotals(list[tuple[UsageKey, Usage]]):
    """Totals that note by which thread they are read."""

    read_by = 0

    def __iter__(self) -> Iterator[tuple[UsageKey, Usage]]:
        self.read_by = threading.get_ident()
        return super().__iter__()


async def test_the_event_loop_goes_on_while_a_report_is_made() -> None:
    totals = NotingTotals(TOTALS)

    class Store(FakeUsageStore):
        async def totals(self, *, since_day: str, until_day: str) -> list[tuple[UsageKey, Usage]]:
            return totals

    await UsageService(Store(), list).report(by=(), since_day="2026-06-01", until_day="2026-06-30")
    assert totals.read_by not in (0, threading.get_ident())
