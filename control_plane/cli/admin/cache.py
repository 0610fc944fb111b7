"""`tidegate cache purge`: invalidate cached responses, over the admin API."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from control_plane.admin.client import AdminClient
from control_plane.cli.common.options import AdminUrlOption, ReasonOption, StateDirOption, admin_client
from control_plane.cli.common.printing import remark
from control_plane.core.errors import ControlPlaneError, InvalidRequest
from control_plane.core.model import MODEL_NAME, NAME_RULE

app = typer.Typer(help="Purge the response cache.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `purge` a subcommand: without a callback Typer makes the only command the group itself."""


@app.command()
def purge(
    name: Annotated[str | None, typer.Argument(help="The model, or a route to it, whose cached responses to purge.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Purge those of every model.")] = False,
    reason: ReasonOption = None,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Purge cached responses, on all gateways within a second. Needed only after a change that is not a
    model's reload.
    """
    if every == (name is not None):
        raise InvalidRequest("give either the model whose cached responses to purge, or --all")
    client = admin_client(state_dir, admin_url, reason)
    if name is None:
        client.ask("DELETE", "cache")
        remark("cached responses of every model are purged")
    elif MODEL_NAME.fullmatch(name) is None:
        raise InvalidRequest(f"{name!r} is not a model's name, which is {NAME_RULE}")
    else:
        _purge_one(client, name)


def _purge_one(client: AdminClient, name: str) -> None:
    client.ask("DELETE", "cache", name)
    model = next((str(route["model"]) for route in client.ask("GET", "routes") if route["name"] == name), name)
    via = f", which is behind route {name}," if model != name else ""
    remark(f"cached responses of {model}{via} and of ensembles that use it are purged")
    # A hint against typing errors only: a purge also works for models that are not loaded, or while Triton is
    # down.
    with suppress(ControlPlaneError):
        if not any(each["name"] == model and each["state"] == "READY" for each in client.list_models()):
            remark(f"model {model} is not loaded")
