"""`tidegate routes`: makes, lists and deletes routes (public names of models), over the admin API."""

from __future__ import annotations

from typing import Any

import typer

from control_plane.cli.admin.routing.route_options import (
    CacheMinCostOption,
    CacheOption,
    CachePrivateOption,
    CacheTtlOption,
    CostBudgetOption,
    DeadlineOption,
    FasterOption,
    HedgingOption,
    LatencyBudgetOption,
    MirrorOption,
    MirrorPercentOption,
    ModelOption,
    NameArgument,
    PoolOption,
    RepeatableOption,
    SaltOption,
    StickyOption,
    TargetsOption,
    TenantsOption,
    TwiceFromOption,
    VersionOption,
)
from control_plane.cli.admin.routing.route_text import (
    COLUMNS,
    cache_given,
    cells,
    hedging_given,
    list_given,
    mirror_given,
    parse_model,
    parse_target,
    seconds,
    texts_given,
)
from control_plane.cli.common.changing import NONE, ReplaceOption, given, set_object
from control_plane.cli.common.options import AdminUrlOption, ReasonOption, StateDirOption, admin_client
from control_plane.cli.common.output import Shape, ShapeOption, listed, print_found
from control_plane.cli.common.printing import print_table, remark

app = typer.Typer(help="Make, list and delete routes.", no_args_is_help=True)


@app.command(name="set")
def set_route(
    name: NameArgument,
    model: ModelOption = None,
    version: VersionOption = None,
    deadline_ms: DeadlineOption = None,
    tenant: TenantsOption = None,
    cache: CacheOption = None,
    cache_ttl: CacheTtlOption = None,
    cache_private: CachePrivateOption = None,
    cache_min_cost: CacheMinCostOption = None,
    pool: PoolOption = None,
    hedging: HedgingOption = None,
    twice_from_ms: TwiceFromOption = None,
    target: TargetsOption = None,
    sticky: StickyOption = None,
    salt: SaltOption = None,
    repeatable: RepeatableOption = None,
    faster: FasterOption = None,
    latency_budget_ms: LatencyBudgetOption = None,
    cost_budget_units: CostBudgetOption = None,
    mirror: MirrorOption = None,
    mirror_percent: MirrorPercentOption = None,
    replace: ReplaceOption = False,
    reason: ReasonOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Make a route, or change the fields that options name."""
    changes = given(
        model=model,
        deadline_s=seconds(deadline_ms),
        tenants=NONE if tenant == [NONE] else tenant,
        is_repeatable=repeatable,
        latency_budget_s=seconds(latency_budget_ms),
        cost_budget_units=cost_budget_units,
    )
    changes |= texts_given(version=version, pool=pool, sticky=sticky, salt=salt)
    changes |= given(targets=list_given(target, parse_target), faster=list_given(faster, parse_model))
    changes |= mirror_given(mirror, mirror_percent)
    if cached := cache_given(cache, cache_ttl, is_private=cache_private, min_cost_units=cache_min_cost):
        changes["cache"] = cached
    if hedged := hedging_given(hedging, twice_from_ms):
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
    print_found(found, output, lambda: print_table(COLUMNS, map(cells, listed(found))))
