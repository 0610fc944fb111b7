"""The command line: one Typer application, and a module for each command or group of commands: in `admin` those that
call a running gateway's admin API, in `planning` those that measure or simulate, beside this one the rest.

Commands parse options and print. What they do is done by the admin API, or by `app` for `serve`; heavy
packages are imported inside the commands that need them, so that `--help` stays quick.
"""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from control_plane.cli import backup, config, doctor, embed, job_worker, node, serve
from control_plane.cli.admin import (
    apply,
    audit,
    cache,
    events,
    fleet,
    jobs,
    keys,
    model_files,
    models,
    prices,
    rollouts,
    routes,
    tenants,
    top,
    usage,
    webhooks,
)
from control_plane.cli.planning import simulate, tune
from control_plane.core.errors import ControlPlaneError

app = typer.Typer(
    help="Many models on NVIDIA Triton, behind one control plane.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command(name="serve")(serve.serve)
app.command(name="node")(node.node)
models.app.command(name="validate")(model_files.validate)
models.app.command(name="init")(model_files.init)
app.add_typer(models.app, name="models")
app.command(name="fleet")(fleet.fleet)
app.command(name="top")(top.top)
app.command(name="events")(events.events)
app.add_typer(keys.app, name="keys")
app.add_typer(tenants.app, name="tenants")
app.add_typer(routes.app, name="routes")
app.add_typer(rollouts.app, name="rollouts")
app.add_typer(prices.app, name="prices")
app.command(name="apply")(apply.apply)
app.command(name="diff")(apply.diff)
app.command(name="get")(apply.get)
app.command(name="delete")(apply.delete)
app.command(name="export")(apply.export)
app.command(name="schema")(apply.schema)
app.add_typer(audit.app, name="audit")
app.add_typer(cache.app, name="cache")
jobs.app.command(name="run")(job_worker.run)
app.add_typer(jobs.app, name="jobs")
app.add_typer(webhooks.app, name="webhooks")
app.command(name="usage")(usage.usage)
app.command(name="embed")(embed.embed)
app.command(name="tune")(tune.tune)
app.command(name="simulate")(simulate.simulate)
app.command(name="doctor")(doctor.doctor)
app.command(name="backup")(backup.backup)
app.command(name="restore")(backup.restore)
app.add_typer(config.app, name="config")


def main() -> None:
    """Run the command; an error of ours is printed as one line on standard error, with exit status 1."""
    messages: list[str] = []
    try:
        app()
    # `except*`, since `serve` runs in a TaskGroup, which raises groups; it also catches a single error.
    except* ControlPlaneError as group:
        messages = _messages(group)
    for line in messages:
        Console(stderr=True).print(f"[bold red]error:[/] {line}", highlight=False, soft_wrap=True)
    if messages:  # not within `except*`: early Pythons 3.11 wrap what is raised there in a group, SystemExit too
        sys.exit(1)


def _messages(group: BaseExceptionGroup[BaseException]) -> list[str]:
    found: list[str] = []
    for error in group.exceptions:
        found += _messages(error) if isinstance(error, BaseExceptionGroup) else [str(error).replace("[", "\\[")]
    return found
