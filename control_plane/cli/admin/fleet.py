"""`tidegate fleet`: shows the servers of a running tidegate, their replicas and recent events, over the admin
API.

With `--watch` the tables are refreshed until interrupted.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from control_plane.admin.client import AdminClient
from control_plane.cli.common.fleet_tables import fleet_tables, tables_that_fit
from control_plane.cli.common.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.common.output import Shape, ShapeOption, print_found
from control_plane.core.errors import InvalidRequest


def fleet(
    watch: Annotated[bool, typer.Option("--watch", help="Refresh the tables until interrupted.")] = False,
    every_s: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds between refreshes.")] = 1.0,
    events: Annotated[int, typer.Option(min=0, max=500, help="Number of latest events to show.")] = 10,
    models: Annotated[
        int | None, typer.Option(min=1, help="Show only this many models, the most used ones. \\[all; with --watch those that fit]")
    ] = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Show servers with their models and memory, models by tier, and what was loaded and evicted lately, and
    why.
    """
    client = admin_client(state_dir, admin_url)
    console = Console()
    if not watch:
        found = _ask(client)
        print_found(found, output, lambda: console.print(fleet_tables(found, events=events, models=models)))
        return
    if output is not Shape.TABLE:
        raise InvalidRequest("--watch refreshes tables; `tidegate events --follow -o json` prints what happens, for programs")

    def tables() -> RenderableType:
        return _fitting(_ask(client), console, events, models)

    with Live(tables(), console=console, auto_refresh=False, screen=console.is_terminal) as live:
        try:
            while True:
                time.sleep(every_s)
                live.update(tables(), refresh=True)
        except KeyboardInterrupt:
            return


def _ask(client: AdminClient) -> dict[str, Any]:
    found: dict[str, Any] = client.ask("GET", "fleet")
    return found


def _fitting(found: dict[str, Any], console: Console, events: int, models: int | None) -> RenderableType:
    if not console.is_terminal:
        return fleet_tables(found, events=events, models=models)
    return tables_that_fit(
        found, height=console.height, events=events, models=models, rows_of=lambda tables: len(console.render_lines(tables))
    )
