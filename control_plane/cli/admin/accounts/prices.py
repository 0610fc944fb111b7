"""`tidegate prices`: makes, lists and deletes prices of compute units and tokens, over the admin API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from control_plane.cli.common.changing import NONE, ReplaceOption, given, number_option, set_object
from control_plane.cli.common.options import AdminUrlOption, ReasonOption, StateDirOption, admin_client
from control_plane.cli.common.output import Shape, ShapeOption, listed, print_found
from control_plane.cli.common.printing import moment, print_table, remark
from control_plane.metering.domain.usage_table import parse_day

app = typer.Typer(help="Make, list and delete prices.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="The price's name.")]


@app.command(name="set")
def set_price(
    name: NameArgument,
    per_unit: Annotated[float | None, number_option("Price of one compute unit, which is a millisecond of one instance.")] = None,
    per_input_token: Annotated[float | None, number_option("Price of one token that a generative model reads.")] = None,
    per_output_token: Annotated[float | None, number_option("Price of one token that it generates.")] = None,
    currency: Annotated[str | None, typer.Option(help="Three letters, such as EUR.")] = None,
    from_day: Annotated[
        str | None,
        typer.Option("--from", metavar="DAY", help="First day (UTC) that it holds for, such as 2026-01-01. \\[a new price: today]"),
    ] = None,
    models: Annotated[str | None, typer.Option(metavar="GLOB", help="Models that it holds for; * is all.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only for this tenant; none: for all tenants without a price of their own.")] = None,
    replace: ReplaceOption = False,
    reason: ReasonOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Make a price, or change the fields that options name. For a price that rises or falls, make another
    with a later --from.
    """
    changes = given(per_unit=per_unit, per_input_token=per_input_token, per_output_token=per_output_token, currency=currency, models=models)
    if tenant is not None:
        changes["tenant"] = "" if tenant == NONE else tenant
    if from_day is not None:
        changes["from_s"] = _start_of(from_day)
    client = admin_client(state_dir, admin_url, reason)
    needed = {"per_unit": "--per-unit", "currency": "--currency"}
    _show(
        set_object(client, "prices", name, changes, replace=replace, needed=needed, defaults_when_new={"from_s": _start_of("today")}),
        output,
    )


@app.command(name="list")
def list_prices(output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """List every price."""
    _show(admin_client(state_dir, admin_url).ask_all("prices"), output)


@app.command()
def delete(name: NameArgument, reason: ReasonOption = None, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Delete a price: usage that it covered, also past usage, is priced by the remaining prices."""
    admin_client(state_dir, admin_url, reason).ask("DELETE", "prices", name)
    remark(f"price {name} is deleted")


def _start_of(day: str) -> float:
    """Return the start of the day (UTC), in seconds since 1970."""
    return datetime.fromisoformat(parse_day(day, today=datetime.now(UTC).date())).replace(tzinfo=UTC).timestamp()


def _show(found: Any, output: Shape) -> None:
    print_found(found, output, lambda: _tabulate(listed(found)))


def _tabulate(prices: list[dict[str, Any]]) -> None:
    fields = ("per_unit", "per_input_token", "per_output_token", "currency", "models", "tenant")
    # A gateway of the version before has no prices of tokens.
    print_table(
        ("name", "from", *fields),
        ((price["name"], moment(price["from_s"]), *(price.get(field, 0.0) for field in fields)) for price in prices),
    )
