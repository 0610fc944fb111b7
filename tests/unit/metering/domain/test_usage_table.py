from __future__ import annotations

import csv
import io
import json
from datetime import date

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.metering.domain.usage import Usage
from control_plane.metering.domain.usage_report import Dimension, UsageReport, UsageRow
from control_plane.metering.domain.usage_table import parse_day, parse_dimensions, to_csv, to_json, to_json_text

TODAY = date(2026, 3, 1)


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("2026-02-28", "2026-02-28"),
        ("today", "2026-03-01"),
        ("0d", "2026-03-01"),
        ("1d", "2026-02-28"),
        ("7d", "2026-02-22"),
        ("365d", "2025-03-01"),
    ],
)
def test_reads_days(text: str, day: str) -> None:
    assert parse_day(text, today=TODAY) == day


@pytest.mark.parametrize(
    "text", ["", "7", "d", "-7d", "7D", "7 d", "2026-02-30", "2026-2-3", "20260203", "2026-W01-1", "99999d" * 2, "1e3d", "²d"]
)
def test_refuses_what_is_no_day(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected a date such as"):
        parse_day(text, today=TODAY)


def test_a_day_before_the_calendar_begins_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        parse_day("99999d", today=date(200, 1, 1))


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("", ()),
        ("tenant", (Dimension.TENANT,)),
        ("day, tenant,model", (Dimension.DAY, Dimension.TENANT, Dimension.MODEL)),
    ],
)
def test_reads_dimensions(text: str, by: tuple[Dimension, ...]) -> None:
    assert parse_dimensions(text) == by


@pytest.mark.parametrize("text", ["key", "tenant,tenant", "Tenant", "tenant;day"])
def test_refuses_what_is_no_dimension(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected some of tenant, model, day, each at most once"):
        parse_dimensions(text)


USAGE = Usage(
    requests=3, failed=1, refused=2, rows=30, elements=300, compute_units=1234.56789, cache_hits=1, input_tokens=5, output_tokens=6
)
REPORT = UsageReport(
    (Dimension.TENANT, Dimension.DAY),
    "2026-06-01",
    "2026-06-30",
    (
        UsageRow(("acme, Inc.", "2026-06-01"), USAGE, {"USD": 0.0000125, "EUR": 1.5}, 0.0),
        UsageRow(("umbrella", "2026-06-02"), Usage(), {"EUR": 1e9}, 12.34567),
    ),
)


def cells(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_a_column_for_everything() -> None:
    first, second = cells(to_csv(REPORT))
    assert first == {
        "tenant": "acme, Inc.",
        "day": "2026-06-01",
        "requests": "3",
        "failed": "1",
        "refused": "2",
        "rows": "30",
        "elements": "300",
        "compute_units": "1234.568",
        "cache_hits": "1",
        "input_tokens": "5",
        "output_tokens": "6",
        "unpriced_units": "0.0",
        "cost_EUR": "1.500000",
        "cost_USD": "0.000013",
    }
    assert (second["cost_EUR"], second["cost_USD"], second["unpriced_units"]) == ("1000000000.000000", "", "12.346")


def test_csv_of_nothing_is_its_head() -> None:
    head = "model,requests,failed,refused,rows,elements,compute_units,cache_hits,input_tokens,output_tokens,unpriced_units\r\n"
    assert to_csv(UsageReport((Dimension.MODEL,), "2026-06-01", "2026-06-01", ())) == head


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@a", "\ta"])
def test_a_spreadsheet_calculates_no_name(name: str) -> None:
    report = UsageReport((Dimension.TENANT,), "2026-06-01", "2026-06-01", (UsageRow((name,), Usage(), {}, 0.0),))
    assert cells(to_csv(report))[0]["tenant"] == "'" + name


def test_json_holds_the_same_unrounded() -> None:
    document = to_json(REPORT)
    assert json.loads(to_json_text(REPORT)) == document
    assert json.loads(json.dumps(document)) == document
    assert (document["by"], document["since"], document["until"]) == (["tenant", "day"], "2026-06-01", "2026-06-30")
    assert document["rows"][0] == {
        "tenant": "acme, Inc.",
        "day": "2026-06-01",
        "requests": 3,
        "failed": 1,
        "refused": 2,
        "rows": 30,
        "elements": 300,
        "compute_units": 1234.56789,
        "cache_hits": 1,
        "input_tokens": 5,
        "output_tokens": 6,
        "unpriced_units": 0.0,
        "costs": {"USD": 0.0000125, "EUR": 1.5},
    }
