"""The reference's page of the command line: every command with its arguments and options, from typer's own description."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, cast

import typer
import typer.main

from control_plane.cli import command_line
from docs.generator.markdown import wrapped


def blocks() -> Iterator[str]:
    yield "# Command line"
    yield wrapped("`tidegate COMMAND --help` says the same. Options in brackets have the default that stands there.")
    yield wrapped(
        "Exit status: 0 it is done, or all is well; 1 it was refused or failed, or the answer is no (a rollout that was rolled back, a "
        "`diff` that is one, a model with mistakes, a machine that lacks something); 2 the command line is wrong, or `diff` cannot tell. "
        "Errors are on standard error, results on standard output."
    )
    yield wrapped(
        "`-o json` and `-o yaml` print what the admin API has, with every field, for programs; tables are for people and change. "
        "`tidegate --install-completion` completes commands and options in bash, zsh and fish; `tidegate --version` prints the version."
    )
    for name, command in sorted(commands().items()):
        yield from _command(f"tidegate {name}", command)


def commands() -> Mapping[str, Any]:
    """Return the commands and groups of `tidegate` by name."""
    group: Any = typer.main.get_command(command_line())
    return cast("Mapping[str, Any]", group.commands)


def _command(name: str, command: Any, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} `{name}`"
    yield wrapped(_plain(command.help))
    for below, each in sorted(getattr(command, "commands", {}).items()):
        yield from _command(f"{name} {below}", each, level + 1)
    context = typer.Context(command)
    lines = [_parameter(each, context) for each in command.params if not each.hidden and each.name != "help"]
    if lines:
        yield "\n".join(lines)


def _parameter(each: Any, context: typer.Context) -> str:
    is_argument = each.param_type_name == "argument"
    shape = "" if is_argument or each.is_flag else f" {each.metavar or each.display_type(context)}"
    names = each.name.upper().rstrip("_") if is_argument else "/".join((*each.opts, *each.secondary_opts)) + shape
    notes = [word for word, holds in (("required", each.required), ("repeatable", each.multiple if not is_argument else False)) if holds]
    default = getattr(each, "default", None)
    if isinstance(default, str | int | float) and not isinstance(default, bool | Enum) and default != "":
        notes.append(f"default `{default}`")
    told = f" ({', '.join(notes)})" if notes else ""
    return wrapped(f"* `{names}`{told}: {_plain(each.help)}", indent="  ")


def _plain(help_text: str | None) -> str:
    """Without the escapes of rich's markup."""
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(help_text or "")).replace("\\[", "[")
    return re.sub(r"(?<!`)<([A-Z]+)>", r"`<\1>`", text)
