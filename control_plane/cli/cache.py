"""`tidegate cache`: the response cache, over the admin API."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from control_plane.admin.client import AdminClient
from control_plane.cli.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.printing import remark
from control_plane.core.errors import ControlPlaneError, InvalidRequest
from control_plane.core.model import MODEL_NAME, NAME_RULE

app = typer.Typer(help="Purge the response cache.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Else the only command would be the group itself."""


@app.command()
def purge(
    name: Annotated[str | None, typer.Argument(help="The model, or a route to it, whose answers are to be found no more.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Those of every model.")] = False,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Have kept answers found no more, on all gateways within a second: after a change that no load tells of."""
    if every == (name is not None):
        raise InvalidRequest("which answers? give a model, or --all")
    client = admin_client(state_dir, admin_url)
    if name is None:
        client.ask("DELETE", "cache")
        remark("kept answers of every model are found no more")
    elif MODEL_NAME.fullmatch(name) is None:
        raise InvalidRequest(f"{name!r} is no model's name, which is {NAME_RULE}")
    else:
        _purge_one(client, name)


def _purge_one(client: AdminClient, name: str) -> None:
    client.ask("DELETE", "cache", name)
    model = next((str(route["model"]) for route in client.ask("GET", "routes") if route["name"] == name), name)
    via = f", which is behind route {name}," if model != name else ""
    remark(f"kept answers of {model}{via} and of ensembles that use it are found no more")
    with suppress(ControlPlaneError):  # without a Triton nobody knows
        if not any(each["name"] == model and each["state"] == "READY" for each in client.list_models()):
            remark(f"model {model} is not loaded")
