"""`tidegate config show`: the settings in force."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

from control_plane.settings import ENV_PREFIX, effective, load_settings

app = typer.Typer(help="Show settings.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Show settings."""


@app.command()
def show() -> None:
    """Every setting, its variable and its value in force, secrets masked."""
    table = Table("setting", "variable", "value", box=None)
    for name, value in effective(load_settings()).items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
        table.add_row(name, ENV_PREFIX + name.upper(), shown)
    Console(soft_wrap=True).print(table)
