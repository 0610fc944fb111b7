"""`tidegate routes`: makes, lists and deletes routes (public names of models), over the admin API."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from control_plane.cli.common.changing import NONE, ReplaceOption, given, limit_option, number_option, percent, set_object
from control_plane.cli.common.options import AdminUrlOption, ReasonOption, StateDirOption, admin_client
from control_plane.cli.common.output import Shape, ShapeOption, listed, print_found
from control_plane.cli.common.printing import print_table, remark

app = typer.Typer(help="Make, list and delete routes.", no_args_is_help=True)


class Caching(StrEnum):
    """Values of `--cache`, whether a route's responses are cached: yes, no, or as the model's configuration says (`model`)."""

    ON = "on"
    OFF = "off"
    MODEL = "model"


class Hedging(StrEnum):
    """Values of `--hedging`, whether a route's late requests go to a second server: yes, no, or as the gateway's setting says
    (`gateway`)."""

    ON = "on"
    OFF = "off"
    GATEWAY = "gateway"


_IS_HEDGED = {Hedging.ON: True, Hedging.OFF: False, Hedging.GATEWAY: None}
_IS_CACHED = {Caching.ON: True, Caching.OFF: False, Caching.MODEL: None}

NameArgument = Annotated[str, typer.Argument(help="The name that callers use.")]


@app.command(name="set")
def set_route(
    name: NameArgument,
    model: Annotated[str | None, typer.Option(help="The model behind the route.")] = None,
    version: Annotated[str | None, typer.Option(help="The model's version; none: its version policy chooses.")] = None,
    deadline_ms: Annotated[float | None, limit_option("Deadline of requests that name none; none: the gateway's.")] = None,
    tenant: Annotated[list[str] | None, typer.Option(help="Tenant that may call it; repeatable. none: all whose keys allow it.")] = None,
    cache: Annotated[Caching | None, typer.Option(help="Whether responses are cached; `model`: as its configuration says.")] = None,
    cache_ttl: Annotated[float | None, limit_option("Seconds that responses are cached; none: the gateway's setting.")] = None,
    cache_private: Annotated[
        bool | None, typer.Option("--cache-private/--cache-shared", help="Whether each tenant has cached responses of its own.")
    ] = None,
    cache_min_cost: Annotated[float | None, number_option("Cache only responses that cost at least this.", metavar="UNITS")] = None,
    pool: Annotated[str | None, typer.Option(help="Fleet: pool that serves it; none: chosen by the kind of each request.")] = None,
    hedging: Annotated[Hedging | None, typer.Option(help="Fleet: whether late requests go to a second server, too.")] = None,
    twice_from_ms: Annotated[float | None, limit_option("Fleet: send requests to two servers that take so long; none: never.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL[:VERSION]=PERCENT", help="Model that gets a part of the requests; repeatable. none: the route's own gets all."
        ),
    ] = None,
    sticky: Annotated[
        str | None,
        typer.Option(help="What keeps a caller at one model: tenant, key, sequence or header:NAME; none: the request's contents."),
    ] = None,
    salt: Annotated[str | None, typer.Option(help="Text of which another one draws anew who goes where; none: the route's name.")] = None,
    repeatable: Annotated[
        bool | None,
        typer.Option(
            "--repeatable/--not-repeatable",
            help="Whether requests may be computed twice: then the route's own model stands in for a target that fails.",
        ),
    ] = None,
    faster: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL[:VERSION]",
            help="Faster and cheaper model that answers where the route's own would exceed a budget; repeatable, the most accurate first. "
            "none: no such model.",
        ),
    ] = None,
    latency_budget_ms: Annotated[
        float | None, limit_option("Latency budget of requests that name none; none: those may take as long as it takes.")
    ] = None,
    cost_budget_units: Annotated[
        float | None, limit_option("Cost budget, in compute units, of requests that name none; none: those may cost what it costs.")
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL[:VERSION]", help="Model that gets copies of requests, whose answers nobody waits for. none: no such model."
        ),
    ] = None,
    mirror_percent: Annotated[
        float | None, number_option("Part of the requests that is copied to the mirror; of a new one 10.", metavar="PERCENT")
    ] = None,
    replace: ReplaceOption = False,
    reason: ReasonOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Make a route, or change the fields that options name."""
    changes = given(
        model=model,
        deadline_s=_seconds(deadline_ms),
        tenants=NONE if tenant == [NONE] else tenant,
        is_repeatable=repeatable,
        latency_budget_s=_seconds(latency_budget_ms),
        cost_budget_units=cost_budget_units,
    )
    changes |= _texts_given(version=version, pool=pool, sticky=sticky, salt=salt)
    changes |= given(targets=_each(target, _target), faster=_each(faster, _model)) | _mirror_given(mirror, mirror_percent)
    if cached := _cache_given(cache, cache_ttl, is_private=cache_private, min_cost_units=cache_min_cost):
        changes["cache"] = cached
    if hedged := _hedging_given(hedging, twice_from_ms):
        changes["hedging"] = hedged
    client = admin_client(state_dir, admin_url, reason)
    _show(set_object(client, "routes", name, changes, replace=replace, needed={"model": "--model"}), output)


@app.command(name="list")
def list_routes(output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """List every route."""
    _show(admin_client(state_dir, admin_url).ask_all("routes"), output)


@app.command()
def delete(name: NameArgument, reason: ReasonOption = None, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Delete a route. Its name then means the model of that name, if there is one."""
    admin_client(state_dir, admin_url, reason).ask("DELETE", "routes", name)
    remark(f"route {name} is deleted")


def _show(found: Any, output: Shape) -> None:
    print_found(found, output, lambda: _tabulate(listed(found)))


def _tabulate(routes: list[dict[str, Any]]) -> None:
    print_table(
        ("name", "model", "version", "targets", "deadline_ms", "tenants", "cache", "pool", "hedging"),
        (
            (
                route["name"],
                route["model"],
                route["version"],
                _targets(route),
                _deadline_ms(route),
                _tenants(route),
                _cache(route),
                route["pool"],
                _hedging(route),
            )
            for route in routes
        ),
    )


def _texts_given(**texts: str | None) -> dict[str, str]:
    """Return the text fields that options name; `none` clears one."""
    return {field: "" if text == NONE else text for field, text in texts.items() if text is not None}


def _each(texts: list[str] | None, parse: Callable[[str], dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Parse a repeatable option, of which a single `none` clears the list; None if it was not given."""
    if texts is None:
        return None
    return [] if texts == [NONE] else [parse(text) for text in texts]


def _cache_given(cache: Caching | None, ttl_s: Any, *, is_private: bool | None, min_cost_units: Any) -> dict[str, Any]:
    changes = given(ttl_s=ttl_s, is_private=is_private, min_cost_units=min_cost_units)
    return changes if cache is None else {**changes, "is_on": _IS_CACHED[cache]}


def _hedging_given(hedging: Hedging | None, twice_from_ms: Any) -> dict[str, Any]:
    changes = given(twice_from_s=_seconds(twice_from_ms))
    return changes if hedging is None else {**changes, "is_on": _IS_HEDGED[hedging]}


def _seconds(milliseconds: Any) -> Any:
    """Return a limit in seconds; what is no number, such as that there is none, as it is."""
    return milliseconds / 1000 if isinstance(milliseconds, float) else milliseconds


def _mirror_given(mirror: str | None, percent_copied: float | None) -> dict[str, Any]:
    if mirror == NONE:
        return {"mirror": None}
    changes = {} if mirror is None else _model(mirror)
    if percent_copied is not None:
        changes["weight"] = round(percent_copied * 100)
    return {"mirror": changes} if changes else {}


def _target(text: str) -> dict[str, Any]:
    """Parse a target such as `encoder_v2=5`. Raises BadParameter."""
    named, _, part = text.partition("=")
    weight = percent(part, whole=text, expected="a target as MODEL[:VERSION]=PERCENT, from 0 to 100, such as encoder_v2=5")
    return {**_model(named), "weight": round(weight * 100)}


def _model(text: str) -> dict[str, Any]:
    """Parse a model and maybe its version, such as `encoder:2`."""
    model, _, version = text.partition(":")
    return {"model": model, "version": version}


def _targets(route: dict[str, Any]) -> str:
    """Render the targets, the faster models and the mirror, such as `encoder_v2 5 %, by tenant, small if over 50 ms or 2 units,
    copies of 10 % to next`."""
    told = [f"{_named(each)} {each['weight'] / 100:g} %" for each in route["targets"]]
    told += [f"by {route['sticky']}"] if route["sticky"] else []
    budget_s = route["latency_budget_s"]
    budget_units = route.get("cost_budget_units")  # an older gateway knows none
    budgets = [] if budget_s is None else [f"{budget_s * 1000:g} ms"]
    budgets += [] if budget_units is None else [f"{budget_units:g} units"]
    over = " or ".join(budgets) or "the caller's budget"
    told += [f"{_named(each)} if over {over}" for each in route["faster"]]
    mirror = route.get("mirror")  # nor this
    told += [] if mirror is None else [f"copies of {mirror['weight'] / 100:g} % to {_named(mirror)}"]
    return ", ".join(told)


def _named(model: dict[str, Any]) -> str:
    return ":".join(filter(None, (model["model"], model["version"])))


def _deadline_ms(route: dict[str, Any]) -> float | None:
    return None if route["deadline_s"] is None else route["deadline_s"] * 1000


def _tenants(route: dict[str, Any]) -> str:
    return "everybody" if route["tenants"] is None else ", ".join(route["tenants"])


def _cache(route: dict[str, Any]) -> str:
    """Render the cache fields that are set, such as `on, 60 s, private, from 5 units`."""
    cache = route["cache"]
    told = [next(name.value for name, is_on in _IS_CACHED.items() if is_on is cache["is_on"])]
    if cache["ttl_s"] is not None:
        told.append(f"{cache['ttl_s']:g} s")
    if cache["is_private"]:
        told.append("private")
    if cache["min_cost_units"]:
        told.append(f"from {cache['min_cost_units']:g} units")
    return ", ".join(told)


def _hedging(route: dict[str, Any]) -> str:
    """Render the fields of hedging that are set, such as `on, twice from 200 ms`; empty where none is."""
    hedging = route["hedging"]
    told = [name.value for name, is_on in _IS_HEDGED.items() if is_on is hedging["is_on"] is not None]
    if hedging["twice_from_s"] is not None:
        told.append(f"twice from {hedging['twice_from_s'] * 1000:g} ms")
    return ", ".join(told)
