"""`tidegate prices`: what a compute unit costs, over the admin API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from control_plane.cli.changing import NONE, ReplaceOption, given, number_option, set_object
from control_plane.cli.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.printing import moment, print_table, remark
from control_plane.metering.domain.usage_table import parse_day

app = typer.Typer(help="Make, list and delete prices.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="The price's name.")]


@app.command(name="set")
def set_price(
    name: NameArgument,
    per_unit: Annotated[float | None, number_option("Of one compute unit: a millisecond of one instance.")] = None,
    currency: Annotated[str | None, typer.Option(help="Three letters, such as EUR.")] = None,
    from_day: Annotated[
        str | None, typer.Option("--from", metavar="DAY", help="From its start (UTC) on, such as 2026-01-01; of a new one today.")
    ] = None,
    models: Annotated[str | None, typer.Option(metavar="GLOB", help="Of these models; * is all.")] = None,
    tenant: Annotated[str | None, typer.Option(help="For this tenant only; none: for all who have no price of their own.")] = None,
    replace: ReplaceOption = False,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Make a price, or change what options name and leave the rest; for one that changes, make another with a later --from."""
    changes = given(per_unit=per_unit, currency=currency, models=models)
    if tenant is not None:
        changes["tenant"] = "" if tenant == NONE else tenant
    if from_day is not None:
        changes["from_s"] = _start_of(from_day)
    client = admin_client(state_dir, admin_url)
    needed = {"per_unit": "--per-unit", "currency": "--currency"}
    _show([set_object(client, "prices", name, changes, replace=replace, needed=needed, at_first={"from_s": _start_of("today")})])


@app.command(name="list")
def list_prices(admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Every price."""
    _show(admin_client(state_dir, admin_url).ask("GET", "prices"))


@app.command()
def delete(name: NameArgument, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Delete a price: what it covered, also in the past, is priced by what is left."""
    admin_client(state_dir, admin_url).ask("DELETE", "prices", name)
    remark(f"price {name} is deleted")


def _start_of(day: str) -> float:
    """In seconds since 1970."""
    return datetime.fromisoformat(parse_day(day, today=datetime.now(UTC).date())).replace(tzinfo=UTC).timestamp()


def _show(prices: list[dict[str, Any]]) -> None:
    print_table(
        ("name", "from", "per_unit", "currency", "models", "tenant"),
        (
            (price["name"], moment(price["from_s"]), *(price[field] for field in ("per_unit", "currency", "models", "tenant")))
            for price in prices
        ),
    )
