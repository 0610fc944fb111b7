"""`tidegate usage`: what was used and what it costs, over the admin API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from control_plane.cli.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.printing import print_table


class Format(StrEnum):
    """How it is printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


_SUMS = ("requests", "failed", "refused", "rows", "elements", "compute_units", "cache_hits")


def usage(
    by: Annotated[str, typer.Option(help="Some of tenant, model, day, with commas between; empty: all in one row.")] = "tenant",
    since: Annotated[str, typer.Option(metavar="DAY", help="A date, today, or 7d for seven days ago; UTC.")] = "7d",
    until: Annotated[str, typer.Option(metavar="DAY", help="The last day, included.")] = "today",
    tenant: Annotated[str | None, typer.Option(help="Only of this one.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this one.")] = None,
    format: Annotated[Format, typer.Option(help="How it is printed.")] = Format.TABLE,  # noqa: A002 - the option's name
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """What was used, and what it costs at the prices of now."""
    asked = {"by": by, "since": since, "until": until, "tenant": tenant, "model": model}
    query = {name: value for name, value in asked.items() if value is not None}
    query["format"] = "csv" if format is Format.CSV else "json"
    report = admin_client(state_dir, admin_url).ask("GET", "usage", query=query)
    match format:
        case Format.CSV:
            typer.echo(report, nl=False)
        case Format.JSON:
            typer.echo(json.dumps(report, indent=2))
        case Format.TABLE:
            _show(report)


def _show(report: Mapping[str, Any]) -> None:
    print_table(
        (*report["by"], *_SUMS, "cost"),
        ([*(row[name] for name in (*report["by"], *_SUMS)), _cost(row)] for row in report["rows"]),
    )


def _cost(row: Mapping[str, Any]) -> str:
    costs = [f"{amount:.2f} {currency}" for currency, amount in row["costs"].items()]
    return " + ".join([*costs, f"{row['unpriced_units']:.10g} units without a price"] if row["unpriced_units"] else costs)
