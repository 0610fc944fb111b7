"""Encoding of usage reports as CSV and JSON, and parsing of their days and dimensions; pure."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import asdict
from datetime import date, timedelta
from typing import Any

from control_plane.core.errors import InvalidRequest
from control_plane.metering.domain.usage import Usage
from control_plane.metering.domain.usage_report import Dimension, UsageReport, UsageRow

_DAYS_AGO = re.compile("([0-9]{1,5})d")
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r")
"""Starts of a cell that a spreadsheet evaluates as a formula (CSV injection)."""
_COST_DIGITS = 6
"""Decimals of a cost: a unit is a millisecond, and may cost a millionth."""


def parse_day(text: str, *, today: date) -> str:
    """Read `2026-11-21`, `today`, or `7d` for seven days ago. Raises InvalidRequest."""
    ago = _DAYS_AGO.fullmatch(text)
    try:
        if text == "today" or ago is not None:
            return (today - timedelta(days=int(ago[1]) if ago else 0)).isoformat()
        if _DATE.fullmatch(text):
            return date.fromisoformat(text).isoformat()
    except (ValueError, OverflowError):
        pass
    raise InvalidRequest(f"day {text[:40]!r}: expected a date such as 2026-11-21, today, or 7d for seven days ago")


def parse_dimensions(text: str) -> tuple[Dimension, ...]:
    """Read dimensions such as `tenant,day`; empty means everything in one row. Raises InvalidRequest."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = set(Dimension)
    if not known.issuperset(names) or len(set(names)) != len(names):
        raise InvalidRequest(f"by {text[:100]!r}: expected some of {', '.join(Dimension)}, each at most once, separated by commas")
    return tuple(map(Dimension, names))


def to_json(report: UsageReport) -> dict[str, Any]:
    """Encode a report as JSON types; a row has a field for each dimension."""
    return {
        "by": list(report.by),
        "since": report.since_day,
        "until": report.until_day,
        "rows": [_json_row(report.by, row) for row in report.rows],
    }


def to_json_text(report: UsageReport) -> str:
    """Encode a report as JSON, row by row, so that other threads go on meanwhile: json encodes a whole value in one go."""
    whole = to_json(report)
    rows = ", ".join(map(json.dumps, whole.pop("rows")))
    head = json.dumps(whole).removesuffix("}")
    return f'{head}, "rows": [{rows}]}}'


def to_csv(report: UsageReport) -> str:
    """Encode a report as CSV (RFC 4180) with a header row and one column for each currency that occurs.

    A name that a spreadsheet would evaluate as a formula is prefixed with `'`.
    """
    currencies = sorted({currency for row in report.rows for currency in row.costs})
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*report.by, *asdict(Usage()), "unpriced_units", *(f"cost_{currency}" for currency in currencies)])
    for row in report.rows:
        usage = asdict(row.usage) | {"compute_units": round(row.usage.compute_units, 3)}
        costs = [_money(row.costs[currency]) if currency in row.costs else "" for currency in currencies]
        writer.writerow([*map(_as_text, row.group), *usage.values(), round(row.unpriced_units, 3), *costs])
    return text.getvalue()


def _json_row(by: tuple[Dimension, ...], row: UsageRow) -> dict[str, Any]:
    groups = dict(zip(map(str, by), row.group, strict=True))
    return {**groups, **asdict(row.usage), "unpriced_units": row.unpriced_units, "costs": dict(row.costs)}


def _money(amount: float) -> str:
    return f"{amount:.{_COST_DIGITS}f}"


def _as_text(name: str) -> str:
    return f"'{name}" if name.startswith(_FORMULA_BEGINS) else name
