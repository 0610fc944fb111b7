"""`tidegate models`: what there is, and loading and unloading it, over the admin API."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from control_plane.adapters.gateway_client import AdminClient
from control_plane.cli.options import StateDirOption, endpoint

app = typer.Typer(help="List, load and unload models.", no_args_is_help=True)

UrlOption = Annotated[str | None, typer.Option("--admin-url", help="Admin API; found through the state folder by default.")]
NameArgument = Annotated[str, typer.Argument(help="The model's name.")]

_STYLES = {"READY": "green", "LOADING": "yellow", "UNLOADING": "yellow"}


@app.command(name="list")
def list_models(admin_url: UrlOption = None, state_dir: StateDirOption = None) -> None:
    """Every model of the repositories, loaded or not."""
    _show(AdminClient(endpoint("admin", state_dir, admin_url)).list_models())


@app.command()
def load(name: NameArgument, admin_url: UrlOption = None, state_dir: StateDirOption = None) -> None:
    """Load a model, or reload it if its files changed."""
    client = AdminClient(endpoint("admin", state_dir, admin_url))
    with Console().status(f"loading {name} ..."):
        model = client.load(name)
    _show([model])


@app.command()
def unload(name: NameArgument, admin_url: UrlOption = None, state_dir: StateDirOption = None) -> None:
    """Unload a model; requests in flight finish."""
    _show([AdminClient(endpoint("admin", state_dir, admin_url)).unload(name)])


def _show(models: list[dict[str, Any]]) -> None:
    table = Table("model", "state", "versions", "memory", "reason", box=None)
    for model in models:
        state = model["state"]
        memory = "" if model["memory_bytes"] is None else f"{model['memory_bytes'] / 2**20:.1f} MiB"
        reason = escape(model["reason"].partition("\n")[0])  # the first line says what; the admin API has the rest
        table.add_row(model["name"], f"[{_STYLES.get(state, 'dim')}]{state}[/]", ", ".join(model["versions"]), memory, reason)
    Console(soft_wrap=True).print(table)
