"""Fields of a route as people write and read them: the options of `tidegate routes set`, the table of `tidegate routes list`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from control_plane.cli.admin.routing.route_options import Caching, Hedging
from control_plane.cli.common.changing import NONE, given, percent

_IS_HEDGED = {Hedging.ON: True, Hedging.OFF: False, Hedging.GATEWAY: None}
_IS_CACHED = {Caching.ON: True, Caching.OFF: False, Caching.MODEL: None}


# Options as fields of the admin API


def texts_given(**texts: str | None) -> dict[str, str]:
    """Return the text fields that options name; `none` clears one."""
    return {field: "" if text == NONE else text for field, text in texts.items() if text is not None}


def list_given(texts: list[str] | None, parse: Callable[[str], dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Parse a repeatable option, of which a single `none` clears the list; None if it was not given."""
    if texts is None:
        return None
    return [] if texts == [NONE] else [parse(text) for text in texts]


def seconds(milliseconds: Any) -> Any:
    """Return a limit in seconds; `none`, or that no limit was given, as it is."""
    return milliseconds / 1000 if isinstance(milliseconds, float) else milliseconds


def cache_given(cache: Caching | None, ttl_s: Any, *, is_private: bool | None, min_cost_units: Any) -> dict[str, Any]:
    changes = given(ttl_s=ttl_s, is_private=is_private, min_cost_units=min_cost_units)
    return changes if cache is None else {**changes, "is_on": _IS_CACHED[cache]}


def hedging_given(hedging: Hedging | None, twice_from_ms: Any) -> dict[str, Any]:
    changes = given(twice_from_s=seconds(twice_from_ms))
    return changes if hedging is None else {**changes, "is_on": _IS_HEDGED[hedging]}


def mirror_given(mirror: str | None, percent_copied: float | None) -> dict[str, Any]:
    if mirror == NONE:
        return {"mirror": None}
    changes = {} if mirror is None else parse_model(mirror)
    if percent_copied is not None:
        changes["weight"] = round(percent_copied * 100)
    return {"mirror": changes} if changes else {}


def parse_target(text: str) -> dict[str, Any]:
    """Parse a target such as `encoder_v2=5`. Raises BadParameter."""
    named, _, part = text.partition("=")
    weight = percent(part, whole=text, expected="a target as MODEL[:VERSION]=PERCENT, from 0 to 100, such as encoder_v2=5")
    return {**parse_model(named), "weight": round(weight * 100)}


def parse_model(text: str) -> dict[str, Any]:
    """Parse a model and maybe its version, such as `encoder:2`."""
    model, _, version = text.partition(":")
    return {"model": model, "version": version}


# Fields as cells of the table

COLUMNS = ("name", "model", "version", "targets", "deadline_ms", "tenants", "cache", "pool", "hedging")


def cells(route: dict[str, Any]) -> tuple[Any, ...]:
    """Render a route as a row of the table; see `COLUMNS`."""
    return (
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
    mirror = route.get("mirror")  # an older gateway knows none
    told += [] if mirror is None else [f"copies of {mirror['weight'] / 100:g} % to {_named(mirror)}"]
    return ", ".join(told)


def _named(model: dict[str, Any]) -> str:
    return ":".join(filter(None, (model["model"], model["version"])))


def _deadline_ms(route: dict[str, Any]) -> float | None:
    return None if route["deadline_s"] is None else route["deadline_s"] * 1000


def _tenants(route: dict[str, Any]) -> str:
    return "everybody" if route["tenants"] is None else ", ".join(route["tenants"])


def _on_or_off(is_on: bool) -> str:
    return "on" if is_on else "off"


def _cache(route: dict[str, Any]) -> str:
    """Render the cache fields that are set, such as `on, 60 s, private, from 5 units`."""
    cache = route["cache"]
    told = ["model" if cache["is_on"] is None else _on_or_off(cache["is_on"])]
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
    told = [] if hedging["is_on"] is None else [_on_or_off(hedging["is_on"])]
    if hedging["twice_from_s"] is not None:
        told.append(f"twice from {hedging['twice_from_s'] * 1000:g} ms")
    return ", ".join(told)
