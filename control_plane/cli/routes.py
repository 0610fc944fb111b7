"""`tidegate routes`: names that callers use and the models behind them, over the admin API."""

from __future__ import annotations

from enum import StrEnum
from math import isfinite
from typing import Annotated, Any

import typer

from control_plane.cli.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.printing import print_table, remark
from control_plane.domain.errors import InvalidRequest

app = typer.Typer(help="Make, list and delete routes.", no_args_is_help=True)


class Caching(StrEnum):
    """`model`: as its own configuration says."""

    ON = "on"
    OFF = "off"
    MODEL = "model"


_IS_ON = {Caching.ON: True, Caching.OFF: False, Caching.MODEL: None}

NameArgument = Annotated[str, typer.Argument(help="The name that callers use.")]


@app.command(name="set")
def set_route(
    name: NameArgument,
    model: Annotated[str, typer.Option(help="The model behind it.")],
    version: Annotated[str, typer.Option(help="Its version. \\[as the model's version policy chooses]")] = "",
    deadline_ms: Annotated[float | None, typer.Option(help="Of requests that name none. \\[the gateway's]")] = None,
    tenant: Annotated[list[str] | None, typer.Option(help="Who may call it; repeatable. \\[everybody whose key allows it]")] = None,
    cache: Annotated[Caching, typer.Option(help="Whether answers are kept; `model`: as its configuration says.")] = Caching.MODEL,
    cache_ttl: Annotated[float | None, typer.Option(metavar="SECONDS", help="For how long. \\[the gateway's]")] = None,
    cache_private: Annotated[
        bool, typer.Option("--cache-private/--cache-shared", help="Whether tenants never see each other's answers.")
    ] = False,
    cache_min_cost: Annotated[float, typer.Option(metavar="UNITS", help="Compute units; what costs less is not kept.")] = 0.0,
    pool: Annotated[str, typer.Option(help="Of servers, in a fleet. \\[by the kind of each request]")] = "",
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Make a route, or replace it whole: an option that is not given gets its default."""
    for option, value in (("--deadline-ms", deadline_ms), ("--cache-ttl", cache_ttl), ("--cache-min-cost", cache_min_cost)):
        if value is not None and not isfinite(value):
            raise InvalidRequest(f"{option} must be a finite number, not {value}")
    deadline_s = None if deadline_ms is None else deadline_ms / 1000
    kept = {"is_on": _IS_ON[cache], "ttl_s": cache_ttl, "is_private": cache_private, "min_cost_units": cache_min_cost}
    spec = {"model": model, "version": version, "deadline_s": deadline_s, "tenants": tenant or None, "cache": kept, "pool": pool}
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
        ("name", "model", "version", "deadline_ms", "tenants", "cache", "pool"),
        (
            (route["name"], route["model"], route["version"], _deadline_ms(route), _tenants(route), _cache(route), route["pool"])
            for route in routes
        ),
    )


def _deadline_ms(route: dict[str, Any]) -> float | None:
    return None if route["deadline_s"] is None else route["deadline_s"] * 1000


def _tenants(route: dict[str, Any]) -> str:
    return "everybody" if route["tenants"] is None else ", ".join(route["tenants"])


def _cache(route: dict[str, Any]) -> str:
    """What was set, and of the rest nothing: `on, 60 s, private, from 5 units`."""
    cache = route["cache"]
    told = [next(name.value for name, is_on in _IS_ON.items() if is_on is cache["is_on"])]
    if cache["ttl_s"] is not None:
        told.append(f"{cache['ttl_s']:g} s")
    if cache["is_private"]:
        told.append("private")
    if cache["min_cost_units"]:
        told.append(f"from {cache['min_cost_units']:g} units")
    return ", ".join(told)
