"""`tidegate tenants`: on whose account requests go, and what each may use, over the admin API."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from control_plane.cli.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.printing import print_table, remark

app = typer.Typer(help="Make, list and delete tenants.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="The tenant's name.")]


@app.command(name="set")
def set_tenant(
    name: NameArgument,
    requests_per_s: Annotated[float | None, typer.Option(help="\\[no limit]")] = None,
    burst: Annotated[int | None, typer.Option(help="Requests that may come at once. \\[one second's worth]")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests that may be under way. \\[no limit]")] = None,
    daily_compute_units: Annotated[float | None, typer.Option(help="From midnight to midnight, UTC. \\[no limit]")] = None,
    weight: Annotated[float, typer.Option(help="Its share of a model that cannot serve everybody.")] = 1.0,
    priority: Annotated[int, typer.Option(help="Tenants of a higher one are served first there.")] = 0,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Make a tenant, or replace all its limits: an option that is not given gets its default."""
    spec = {
        "requests_per_s": requests_per_s,
        "burst": burst,
        "concurrency": concurrency,
        "daily_compute_units": daily_compute_units,
        "weight": weight,
        "priority": priority,
    }
    _show([admin_client(state_dir, admin_url).ask("PUT", "tenants", name, body=spec)])


@app.command(name="list")
def list_tenants(admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Every tenant and its limits; an empty one is no limit."""
    _show(admin_client(state_dir, admin_url).ask("GET", "tenants"))


@app.command()
def delete(name: NameArgument, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Delete a tenant, which must have no valid keys any more; what it used stays in the books."""
    admin_client(state_dir, admin_url).ask("DELETE", "tenants", name)
    remark(f"tenant {name} is deleted")


_LIMITS = ("requests_per_s", "burst", "concurrency", "daily_compute_units", "weight", "priority")


def _show(tenants: list[dict[str, Any]]) -> None:
    columns = ("name", *_LIMITS)
    print_table(columns, ([tenant[column] for column in columns] for tenant in tenants))
