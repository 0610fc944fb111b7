"""Command line: one Typer application, with a module for each command or group of commands.

`admin` has the commands that call a running gateway's admin API, `planning` those that measure or simulate; the others are
beside this module. Commands parse options and print: the work is done by the admin API, or for `serve` by `app`. Only the
command that runs is imported, and heavy packages are imported inside the functions that need them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console

from control_plane.core.errors import ControlPlaneError
from control_plane.host.memory.garbage import garbage_collector_paused

_COMMANDS: Mapping[str, str] = {
    "serve": "serve",
    "node": "node",
    "models": "admin.models",
    "fleet": "admin.fleet",
    "regions": "admin.routing.regions",
    "top": "admin.top",
    "events": "admin.events",
    "keys": "admin.accounts.keys",
    "tenants": "admin.accounts.tenants",
    "routes": "admin.routing.routes",
    "rollouts": "admin.routing.rollouts",
    "prices": "admin.accounts.prices",
    "apply": "admin.apply",
    "diff": "admin.apply",
    "get": "admin.apply",
    "delete": "admin.apply",
    "export": "admin.apply",
    "schema": "admin.apply",
    "audit": "admin.audit",
    "cache": "admin.cache",
    "jobs": "admin.jobs",
    "webhooks": "admin.webhooks",
    "usage": "admin.accounts.usage",
    "embed": "embed",
    "profile": "planning.profile",
    "tune": "planning.tune",
    "simulate": "planning.simulate",
    "doctor": "doctor",
    "backup": "backup",
    "restore": "backup",
    "config": "config",
}
"""Commands in the order of `--help`, and the module of each below this package: its `app` if it is a group, else its function of
that name."""


def command_line(*names: str) -> typer.Typer:
    """Make the application of these commands, without names of all: importing one command's modules is much quicker."""
    app = typer.Typer(
        help="Many models on NVIDIA Triton, behind one control plane.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(_options)  # without one Typer takes an only command for the whole application
    for name in names or _COMMANDS:
        module = import_module(f"{__name__}.{_COMMANDS[name]}")
        if isinstance(group := getattr(module, "app", None), typer.Typer):
            app.add_typer(group, name=name)
        else:
            app.command(name=name)(getattr(module, name))
    return app


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"tidegate {version('tidegate')}")
        raise typer.Exit


def _options(
    _is_asked: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command; an error of ours is printed as one line on standard error, with exit status 1."""
    messages: list[str] = []
    try:
        with garbage_collector_paused():
            app = command_line(*(name for name in sys.argv[1:2] if name in _COMMANDS))
        app()
    # `except*`, since `serve` runs in a TaskGroup, which raises groups; it also catches a single error.
    except* ControlPlaneError as group:
        messages = _messages(group)
    for line in messages:
        Console(stderr=True).print(f"[bold red]error:[/] {line}", highlight=False, soft_wrap=True)
    if messages:  # not within `except*`: early Pythons 3.11 wrap what is raised there in a group, SystemExit too
        sys.exit(1)


def _shown(text: str) -> str:
    """The text of an error, which may quote what a model's code has raised."""
    from control_plane.cli.common.printing import printable

    return "\n".join(map(printable, text.splitlines())).replace("[", "\\[")


def _messages(group: BaseExceptionGroup[BaseException]) -> list[str]:
    found: list[str] = []
    for error in group.exceptions:
        found += _messages(error) if isinstance(error, BaseExceptionGroup) else [_shown(str(error))]
    return found
