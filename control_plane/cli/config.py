"""`tidegate config show`: the settings in force."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Column, Table

from control_plane.settings import ENV_PREFIX, effective, load_settings

app = typer.Typer(help="Show settings.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Show settings."""


@app.command()
def show() -> None:
    """Every setting, its variable and its value in force, secrets masked."""
    # Names are there to be copied: whole in a narrow terminal and in a pipe.
    settings = effective(load_settings())
    longest = max(map(len, settings))
    names = (Column(title, no_wrap=True, min_width=longest + more) for title, more in (("setting", 0), ("variable", len(ENV_PREFIX))))
    table = Table(*names, Column("value", overflow="fold"), box=None)
    for name, value in settings.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else str(value)
        table.add_row(name, ENV_PREFIX + name.upper(), shown)
    Console(soft_wrap=True).print(table)
