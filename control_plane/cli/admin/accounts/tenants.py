"""`tidegate tenants`: makes, lists and deletes tenants and their limits, over the admin API."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from control_plane.cli.common.changing import ReplaceOption, given, limit_option, number_option, set_object
from control_plane.cli.common.options import AdminUrlOption, ReasonOption, StateDirOption, admin_client
from control_plane.cli.common.output import Shape, ShapeOption, listed, print_found
from control_plane.cli.common.printing import print_table, remark

app = typer.Typer(help="Make, list and delete tenants.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="The tenant's name.")]


@app.command(name="set")
def set_tenant(
    name: NameArgument,
    requests_per_s: Annotated[float | None, limit_option("Requests per second.")] = None,
    burst: Annotated[float | None, limit_option("Requests that may arrive at once; none: one second's worth.")] = None,
    concurrency: Annotated[float | None, limit_option("Requests that may be in flight.")] = None,
    daily_compute_units: Annotated[float | None, limit_option("Compute units per day (UTC).")] = None,
    weight: Annotated[float | None, number_option("Share of a model that cannot serve everybody. \\[1]")] = None,
    priority: Annotated[int | None, typer.Option(help="A higher one is served first at such a model. \\[0]")] = None,
    regions: Annotated[str | None, typer.Option(help="Where its requests may be computed: any, or local. \\[any]")] = None,
    replace: ReplaceOption = False,
    reason: ReasonOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Make a tenant, or change the limits that options name; `none` removes a limit."""
    changes = given(
        requests_per_s=requests_per_s,
        burst=burst,
        concurrency=concurrency,
        daily_compute_units=daily_compute_units,
        weight=weight,
        priority=priority,
        regions=regions,
    )
    _show(set_object(admin_client(state_dir, admin_url, reason), "tenants", name, changes, replace=replace), output)


@app.command(name="list")
def list_tenants(output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """List every tenant and its limits; an empty cell means no limit."""
    _show(admin_client(state_dir, admin_url).ask_all("tenants"), output)


@app.command()
def delete(name: NameArgument, reason: ReasonOption = None, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Delete a tenant, which must have no valid keys. Its usage stays in the reports."""
    admin_client(state_dir, admin_url, reason).ask("DELETE", "tenants", name)
    remark(f"tenant {name} is deleted")


_LIMITS = ("requests_per_s", "burst", "concurrency", "daily_compute_units", "weight", "priority", "regions")


def _show(found: Any, output: Shape) -> None:
    print_found(found, output, lambda: _tabulate(listed(found)))


def _tabulate(tenants: list[dict[str, Any]]) -> None:
    columns = ("name", *_LIMITS)
    print_table(columns, ([tenant[column] for column in columns] for tenant in tenants))
