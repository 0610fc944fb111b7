"""`tidegate models`: lists, loads and unloads models over the admin API, and builds models' variants.

Building needs no running tidegate: it runs the program `python_backends.export`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from control_plane.cli.admin import model_files
from control_plane.cli.common.options import AdminUrlOption, ReasonOption, StateDirOption, admin_client
from control_plane.cli.common.output import Shape, ShapeOption, listed, print_found
from control_plane.cli.common.printing import print_fields, print_table
from control_plane.core.errors import ModelNotFound
from control_plane.settings import load_settings

app = typer.Typer(help="List, show, load, unload and build models.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="The model's name.")]

_STYLES = {"READY": "green", "LOADING": "yellow", "UNLOADING": "yellow"}


@app.command(name="list")
def list_models(output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """List every model of the repositories, loaded or not."""
    _show(admin_client(state_dir, admin_url).list_models(), output)


@app.command()
def show(name: NameArgument, output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Show one model: its state with the whole reason, and which of its variants is served and why."""
    model = admin_client(state_dir, admin_url).get(name)
    fields = {
        "model": model["name"],
        "state": model["state"],
        "reason": model["reason"],
        "versions": ", ".join(model["versions"]),
        "memory": _memory(model),
        "tier": model["tier"],
        "servers": " ".join(model["servers"]),
        "variant": model["variant"],
        "why": model["variant_reason"],
        "build": model["build"],
    }
    print_found(model, output, lambda: print_fields(fields.items()))


@app.command()
def load(
    name: NameArgument,
    everywhere: Annotated[bool, typer.Option("--everywhere", help="In a fleet, load it on every server that suits it.")] = False,
    reason: ReasonOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Load a model, or reload it if its files changed."""
    client = admin_client(state_dir, admin_url, reason)
    with Console().status(f"loading {name} ..."):
        model = client.load(name, everywhere=everywhere)
    _show(model, output)


@app.command()
def unload(
    name: NameArgument,
    reason: ReasonOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Unload a model; requests in flight finish."""
    _show(admin_client(state_dir, admin_url, reason).unload(name), output)


@app.command()
def release(
    name: NameArgument,
    reason: ReasonOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """In a fleet, undo `load` or `unload` of a model: it is loaded on demand and evicted again."""
    _show(admin_client(state_dir, admin_url, reason).release(name), output)


@app.command()
def build(
    name: NameArgument,
    variant: Annotated[list[str] | None, typer.Option(help="Build only this variant; repeatable.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Build up-to-date variants too.")] = False,
    sts: Annotated[Path | None, typer.Option(metavar="FILE", help="Also measure accuracy on this STS benchmark file (csv).")] = None,
) -> None:
    """Build the variants of a model that has a recipe (`build.py`), except those that are up to date."""
    folder = _folder_with_recipe(name, load_settings().triton.model_repository)
    options = [*(f"--variant={each}" for each in variant or []), *(["--force"] if force else []), *([f"--sts={sts}"] if sts else [])]
    # exec, so that the build itself gets interrupts and sets the exit status. The control plane never imports
    # `python_backends`: its packages (torch, onnx) need not be installed for serving.
    os.execv(sys.executable, [sys.executable, "-m", "python_backends.export", *options, "--", str(folder)])  # noqa: S606


app.command(name="validate")(model_files.validate)
app.command(name="init")(model_files.init)


def _folder_with_recipe(name: str, repositories: Sequence[Path]) -> Path:
    found = {recipe.parent.name: recipe.parent for root in reversed(repositories) for recipe in sorted(root.glob("*/build.py"))}
    if name not in found:
        looked_in = ", ".join(map(str, repositories))
        raise ModelNotFound(f"no recipe for a model {name!r} in {looked_in}; there are: {', '.join(sorted(found)) or 'none'}")
    return found[name]


def _show(found: Any, output: Shape) -> None:
    print_found(found, output, lambda: _tabulate(listed(found)))


def _tabulate(models: list[dict[str, Any]]) -> None:
    is_fleet = any(model["tier"] for model in models)
    places = ["tier", "servers"] if is_fleet else []
    variants = ["variant"] if any(model["variant"] for model in models) else []
    rows = []
    for model in models:
        state = Text(model["state"], style=_STYLES.get(model["state"], "dim"))
        # Triton's reasons may be whole stack traces, whose first line says what failed.
        reason = "; ".join(filter(None, (model["reason"].partition("\n")[0], model["build"])))
        where = [model["tier"], " ".join(model["servers"])] if is_fleet else []
        variant = [model["variant"]] if variants else []
        rows.append((model["name"], state, *where, ", ".join(model["versions"]), *variant, _memory(model), reason))
    print_table(("model", "state", *places, "versions", *variants, "memory", "reason"), rows, wraps=True)


def _memory(model: dict[str, Any]) -> str:
    return "" if model["memory_bytes"] is None else f"{model['memory_bytes'] / 2**20:.1f} MiB"
