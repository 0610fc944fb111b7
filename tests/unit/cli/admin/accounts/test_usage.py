"""`tidegate prices | usage` against the admin API on a real port."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from control_plane.metering.domain.usage import Usage, UsageKey
from tests.unit.admin.admin_bench import Bench
from tests.unit.cli.command import Tidegate


class TestPrices:
    def test_from_making_to_deleting(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        more = ("--from", "2026-01-02", "--models", "text_*", "--tenant", "acme")
        shown = ["p", "2026-01-02", "00:00", "0.00000125", "0", "0", "EUR", "text_*", "acme"]
        assert tidegate("prices", "set", "p", "--per-unit", "0.00000125", "--currency", "EUR", *more, *where).table[1:] == [shown]
        assert tidegate("prices", "list", *where).table[1:] == [shown]
        today = datetime.now(UTC).date().isoformat()
        changed = tidegate("prices", "set", "p", "--per-unit", 2, *where)
        assert changed.table[1:] == [["p", "2026-01-02", "00:00", "2", "0", "0", "EUR", "text_*", "acme"]]
        assert changed.err == "price p: per_unit 1.25e-06 -> 2\n"
        assert tidegate("prices", "set", "p", "--per-input-token", 3, "--per-output-token", 4, *where).table[1][3:6] == ["2", "3", "4"]
        assert tidegate("prices", "set", "p", "--per-input-token", 0, "--per-output-token", 0, *where).table[1][3:6] == ["2", "0", "0"]
        assert tidegate("prices", "set", "q", "--per-unit", 2, *where).err == "error: a new price needs --currency\n"
        replaced = tidegate("prices", "set", "p", "--replace", "--per-unit", 2, "--currency", "USD", *where)
        assert replaced.table[1][:2] == ["p", today]
        assert tidegate("prices", "delete", "p", *where) == (0, "", "price p is deleted\n")
        assert tidegate("prices", "list", *where).table[1:] == []

    @pytest.mark.parametrize(("option", "value"), [("--from", "tomorrow"), ("--currency", "euro"), ("--per-unit", "-1")])
    def test_a_refusal(self, tidegate: Tidegate, where: tuple[str, str], option: str, value: str) -> None:
        given = {"--per-unit": "1", "--currency": "EUR", option: value}
        ended = tidegate("prices", "set", "p", *(word for pair in given.items() for word in pair), *where)
        assert (ended.status, ended.out) == (1, "")


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine in another time zone: days are UTC's everywhere, so none of them has 23 or 25 hours."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone")
class TestPricesThatChange:
    def test_each_day_is_charged_at_the_price_of_its_start(self, tidegate: Tidegate, bench: Bench, where: tuple[str, str]) -> None:
        # Clocks go forward in New York on the 8th and in Berlin on the 29th of March, and back on the 25th of October.
        days = ("2026-03-07", "2026-03-08", "2026-03-28", "2026-03-29", "2026-03-30", "2026-10-24", "2026-10-25", "2026-10-26")
        bench.usage.usage.sums = {UsageKey(day, "acme", "a"): Usage(requests=1, compute_units=1.0) for day in days}
        prices = (("first", "2026-03-08", 1), ("second", "2026-03-29", 10), ("third", "2026-10-26", 100), ("yet", "2099-01-01", 1000))
        for name, day, per_unit in prices:
            tidegate("prices", "set", name, "--from", day, "--per-unit", per_unit, "--currency", "EUR", *where)
        tidegate("prices", "set", "own", "--from", "2026-10-25", "--per-unit", 7, "--currency", "EUR", "--tenant", "acme", *where)
        ends_s = time.monotonic() + 100
        while (costs := self._costs(tidegate, where))[-1] != 7 or costs[1] is None:  # until all are known
            assert time.monotonic() < ends_s, costs
        assert costs == [None, 1, 1, 10, 10, 10, 7, 7]
        for name in ("first", "second", "third", "yet", "own"):
            tidegate("prices", "delete", name, *where)

    def _costs(self, tidegate: Tidegate, where: tuple[str, str]) -> list[float | None]:
        report = tidegate("usage", "--by", "day", "--since", "2026-01-01", "--until", "2026-12-31", "--format", "json", *where).out
        return [row["costs"].get("EUR") for row in json.loads(report)["rows"]]


class TestUsage:
    @pytest.fixture(autouse=True)
    def used(self, bench: Bench) -> None:
        today = datetime.now(UTC).date().isoformat()
        bench.usage.usage.sums = {
            UsageKey(today, "acme", "a"): Usage(requests=3, refused=1, compute_units=12.5),
            UsageKey(today, "b", "a"): Usage(requests=4, compute_units=2.0),
        }

    def test_as_a_table(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        tidegate("prices", "set", "u", "--per-unit", 2, "--currency", "EUR", "--tenant", "acme", *where)
        ends_s = time.monotonic() + 100
        while (table := tidegate("usage", *where).table)[1][-1] != "EUR":  # until it is known
            assert time.monotonic() < ends_s, table
        assert table == [
            [
                "tenant",
                "requests",
                "failed",
                "refused",
                "rows",
                "elements",
                "compute_units",
                "cache_hits",
                "input_tokens",
                "output_tokens",
                "cost",
            ],
            ["acme", "3", "0", "1", "0", "0", "12.5", "0", "0", "0", "25.00", "EUR"],
            ["b", "4", "0", "0", "0", "0", "2", "0", "0", "0", "2", "units", "without", "a", "price"],
        ]
        tidegate("prices", "delete", "u", *where)

    def test_as_csv(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        ended = tidegate("usage", "--by", "model,tenant", "--since", "today", "--tenant", "acme", "--format", "csv", *where)
        head, *rows = csv.reader(io.StringIO(ended.out))
        assert head[:3] == ["model", "tenant", "requests"]
        assert [row[:3] for row in rows] == [["a", "acme", "3"]]

    def test_as_json(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        report = json.loads(tidegate("usage", "--by", "", "--model", "a", "--format", "json", *where).out)
        assert (report["by"], [row["requests"] for row in report["rows"]]) == ([], [7])

    def test_nothing_used(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        assert len(tidegate("usage", "--until", "1d", *where).table) == 1

    def test_a_refusal(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        ended = tidegate("usage", "--by", "month", *where)
        assert (ended.status, ended.out, "error: by: " in ended.err) == (1, "", True)
