"""`tidegate routes`: names that callers use and the models behind them, over the admin API."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from control_plane.cli.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.printing import print_table, remark

app = typer.Typer(help="Make, list and delete routes.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="The name that callers use.")]


@app.command(name="set")
def set_route(
    name: NameArgument,
    model: Annotated[str, typer.Option(help="The model behind it.")],
    version: Annotated[str, typer.Option(help="Its version. \\[as the model's version policy chooses]")] = "",
    deadline_ms: Annotated[float | None, typer.Option(help="Of requests that name none. \\[the gateway's]")] = None,
    tenant: Annotated[list[str] | None, typer.Option(help="Who may call it; repeatable. \\[everybody whose key allows it]")] = None,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Make a route, or replace it whole: an option that is not given gets its default."""
    deadline_s = None if deadline_ms is None else deadline_ms / 1000
    spec = {"model": model, "version": version, "deadline_s": deadline_s, "tenants": tenant or None}
    _show([admin_client(state_dir, admin_url).ask("PUT", "routes", name, body=spec)])


@app.command(name="list")
def list_routes(admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Every route."""
    _show(admin_client(state_dir, admin_url).ask("GET", "routes"))


@app.command()
def delete(name: NameArgument, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Delete a route: from then on the name is a model's, if there is one."""
    admin_client(state_dir, admin_url).ask("DELETE", "routes", name)
    remark(f"route {name} is deleted")


def _show(routes: list[dict[str, Any]]) -> None:
    print_table(
        ("name", "model", "version", "deadline_ms", "tenants"),
        ((route["name"], route["model"], route["version"], _deadline_ms(route), _tenants(route)) for route in routes),
    )


def _deadline_ms(route: dict[str, Any]) -> float | None:
    return None if route["deadline_s"] is None else route["deadline_s"] * 1000


def _tenants(route: dict[str, Any]) -> str:
    return "everybody" if route["tenants"] is None else ", ".join(route["tenants"])
