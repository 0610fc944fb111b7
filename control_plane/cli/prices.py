"""`tidegate prices`: what a compute unit costs, over the admin API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from control_plane.cli.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.printing import moment, print_table, remark
from control_plane.codec.usage_table import parse_day

app = typer.Typer(help="Make, list and delete prices.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="The price's name.")]


@app.command(name="set")
def set_price(
    name: NameArgument,
    per_unit: Annotated[float, typer.Option(help="Of one compute unit: a millisecond of one instance at batch 1.")],
    currency: Annotated[str, typer.Option(help="Three letters, such as EUR.")],
    from_day: Annotated[str, typer.Option("--from", metavar="DAY", help="From its start (UTC) on, such as 2026-01-01.")] = "today",
    models: Annotated[str, typer.Option(metavar="GLOB", help="Of these models.")] = "*",
    tenant: Annotated[str, typer.Option(help="For this tenant only. \\[for all who have no price of their own]")] = "",
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Make a price, or replace it whole; for one that changes, make another with a later --from."""
    day = datetime.fromisoformat(parse_day(from_day, today=datetime.now(UTC).date())).replace(tzinfo=UTC)
    spec = {"from_s": day.timestamp(), "per_unit": per_unit, "currency": currency, "models": models, "tenant": tenant}
    _show([admin_client(state_dir, admin_url).ask("PUT", "prices", name, body=spec)])


@app.command(name="list")
def list_prices(admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Every price."""
    _show(admin_client(state_dir, admin_url).ask("GET", "prices"))


@app.command()
def delete(name: NameArgument, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Delete a price: what it covered, also in the past, is priced by what is left."""
    admin_client(state_dir, admin_url).ask("DELETE", "prices", name)
    remark(f"price {name} is deleted")


def _show(prices: list[dict[str, Any]]) -> None:
    print_table(
        ("name", "from", "per_unit", "currency", "models", "tenant"),
        (
            (price["name"], moment(price["from_s"]), *(price[field] for field in ("per_unit", "currency", "models", "tenant")))
            for price in prices
        ),
    )
