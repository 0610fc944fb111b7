"""`tidegate fleet`: the servers of a running tidegate and what is on them, over the admin API; with `--watch` a table that lives."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from control_plane.admin.client import AdminClient
from control_plane.cli.fleet_tables import fitting_tables, fleet_tables
from control_plane.cli.options import AdminUrlOption, StateDirOption, admin_client


def fleet(
    watch: Annotated[bool, typer.Option("--watch", help="Keep it up to date until interrupted.")] = False,
    every_s: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds between two looks.")] = 1.0,
    events: Annotated[int, typer.Option(min=0, max=500, help="How many of the latest events.")] = 10,
    models: Annotated[
        int | None, typer.Option(min=1, help="How many models at most, the most used ones; with --watch as many as there is room for.")
    ] = None,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Servers with their models and memory, models by tier, and what has been loaded and evicted lately, and why."""
    client = admin_client(state_dir, admin_url)
    console = Console()
    if not watch:
        console.print(fleet_tables(_ask(client), events=events, models=models))
        return

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
    return fitting_tables(
        found, height=console.height, events=events, models=models, rows_of=lambda tables: len(console.render_lines(tables))
    )
