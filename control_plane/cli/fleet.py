"""`tidegate fleet`: the servers of a running tidegate and what is on them, over the admin API; with `--watch` a table that lives."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from control_plane.adapters.gateway_client import AdminClient
from control_plane.cli.options import AdminUrlOption, StateDirOption, admin_client

_STATES = {"READY": "green", "LOADING": "yellow", "UNLOADING": "yellow"}
_KINDS = {"failed": "red", "lost": "red", "evicted": "yellow", "loaded": "green"}
_MIB = 2**20


def fleet(
    watch: Annotated[bool, typer.Option("--watch", help="Keep it up to date until interrupted.")] = False,
    every_s: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds between two looks.")] = 1.0,
    events: Annotated[int, typer.Option(min=0, max=500, help="How many of the latest events.")] = 10,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Servers with their models and memory, models by tier, and what has been loaded and evicted lately, and why."""
    client = admin_client(state_dir, admin_url)
    console = Console()
    if not watch:
        console.print(_tables(_ask(client), events))
        return
    with Live(_tables(_ask(client), events), console=console, auto_refresh=False, screen=console.is_terminal) as live:
        try:
            while True:
                time.sleep(every_s)
                live.update(_tables(_ask(client), events), refresh=True)
        except KeyboardInterrupt:
            return


def _ask(client: AdminClient) -> dict[str, Any]:
    found: dict[str, Any] = client.ask("GET", "fleet")
    return found


def _tables(found: dict[str, Any], events: int) -> RenderableType:
    return Group(_servers(found["servers"]), "", _models(found["models"]), "", _events(found["events"][-events:] if events else []))


def _servers(servers: list[dict[str, Any]]) -> Table:
    table = Table("server", "", "held", "of", "models", box=None, title="servers", title_justify="left")
    for server in servers:
        up = "[green]up[/]" if server["is_up"] else "[red]down[/]"
        budget = "no bound" if server["budget_bytes"] is None else _size(server["budget_bytes"])
        copies = " ".join(f"[{_STATES.get(copy['state'], 'dim')}]{copy['model']}[/]" for copy in server["copies"])
        table.add_row(server["name"], up, _size(server["held_bytes"]), budget, copies or "[dim]none[/]")
    return table


def _models(models: list[dict[str, Any]]) -> Table:
    table = Table("model", "tier", "copies", "memory", "load", "uses/s", "", box=None, title="models", title_justify="left")
    for model in models:
        note = f"[red]not tried for {model['quarantined_for_s']:.0f} s: it failed to load[/]" if model["quarantined_for_s"] else ""
        pinned = f" (at least {model['min_copies']})" if model["min_copies"] else ""
        tier = f"[{'green' if model['tier'] == 'hot' else 'dim'}]{model['tier']}[/]"
        copies = f"{len(model['servers'])}{pinned}"
        figures = (copies, _size(model["resident_bytes"]), f"{model['load_s']:.1f} s", f"{model['uses_per_s']:.2f}")
        table.add_row(model["name"], tier, *figures, note)
    return table


def _events(events: list[dict[str, Any]]) -> Table:
    table = Table("when", "", "model", "server", "took", "why", box=None, title="latest", title_justify="left")
    for event in events:
        when = time.strftime("%H:%M:%S", time.localtime(event["at_s"]))
        kind = f"[{_KINDS.get(event['kind'], 'dim')}]{event['kind']}[/]"
        took = f"{event['seconds']:.1f} s" if event["seconds"] else ""
        table.add_row(when, kind, event["model"], event["server"], took, escape(event["reason"].partition("\n")[0]))
    return table


def _size(count: int) -> str:
    return f"{count / _MIB:,.0f} MiB"
