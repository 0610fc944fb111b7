"""`tidegate config show`: prints the settings in force."""

from __future__ import annotations

from collections.abc import Mapping

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from control_plane.cli.common.output import Shape, ShapeOption, print_found
from control_plane.settings import ENV_PREFIX, effective, load_settings

_PLAIN = (bool, int, float, str, type(None))
_WIDE = 1000
"""Width in columns of output that goes to a pipe or file: values stay on one line there, for `grep` and for
copying."""

app = typer.Typer(help="Show settings.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Show settings."""


@app.command()
def show(output: ShapeOption = Shape.TABLE) -> None:
    """Show every setting's variable and its value in force, with secrets masked.

    An option of `serve` has the name of its variable, without TIDEGATE_ and in lower case.
    """
    found = effective(load_settings())
    plain = {ENV_PREFIX + name.upper(): value if isinstance(value, _PLAIN) else _shown(value, ",") for name, value in found.items()}
    print_found(plain, output, lambda: _tabulate(found))


def _tabulate(found: Mapping[str, object]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    table = Table(Column("variable", no_wrap=True), Column("value", overflow="fold"), box=None, pad_edge=False)
    for name, value in found.items():
        table.add_row(ENV_PREFIX + name.upper(), Text(_shown(value, "\n" if console.is_terminal else ", ")))
    console.print(table)


def _shown(value: object, between: str) -> str:
    if isinstance(value, list | tuple):
        return between.join(map(str, value))
    return "" if value is None else str(value)
