"""`tidegate usage`: reports usage and its cost, over the admin API."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from control_plane.cli.common.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.common.output import Shape, print_found
from control_plane.cli.common.printing import print_table


class Format(StrEnum):
    """Output format of the report."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"


_SUMS = ("requests", "failed", "refused", "rows", "elements", "compute_units", "cache_hits", "input_tokens", "output_tokens")


def usage(
    by: Annotated[str, typer.Option(help="Columns to group by: any of tenant,model,day; empty: one row for all.")] = "tenant",
    since: Annotated[str, typer.Option(metavar="DAY", help="First day: a date, today, or 7d for seven days ago; UTC.")] = "7d",
    until: Annotated[str, typer.Option(metavar="DAY", help="Last day, included.")] = "today",
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's usage.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model's usage.")] = None,
    format: Annotated[Format, typer.Option("--format", "--output", "-o", help="Output format.")] = Format.TABLE,  # noqa: A002 - the option's name
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Report what was used, and what it costs at the present prices."""
    asked = {"by": by, "since": since, "until": until, "tenant": tenant, "model": model}
    query = {name: value for name, value in asked.items() if value is not None}
    query["format"] = "csv" if format is Format.CSV else "json"
    report = admin_client(state_dir, admin_url).ask("GET", "usage", query=query)
    match format:
        case Format.CSV:
            typer.echo(report, nl=False)
        case _:
            print_found(report, Shape(format.value), lambda: _show(report))


def _show(report: Mapping[str, Any]) -> None:
    print_table(
        (*report["by"], *_SUMS, "cost"),
        ([*(row[name] for name in (*report["by"], *_SUMS)), _cost(row)] for row in report["rows"]),
    )


def _cost(row: Mapping[str, Any]) -> str:
    costs = [f"{amount:.2f} {currency}" for currency, amount in row["costs"].items()]
    return " + ".join([*costs, f"{row['unpriced_units']:.10g} units without a price"] if row["unpriced_units"] else costs)
