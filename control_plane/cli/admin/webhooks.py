"""`tidegate webhooks`: makes, lists and deletes the secrets that jobs' webhooks are signed with, over the admin API."""

from __future__ import annotations

from typing import Annotated

import typer

from control_plane.cli.common.options import AdminUrlOption, ReasonOption, StateDirOption, admin_client
from control_plane.cli.common.output import Shape, ShapeOption, print_found
from control_plane.cli.common.printing import moment, print_table, remark

app = typer.Typer(help="Make, list and delete the secrets that jobs' webhooks are signed with.", no_args_is_help=True)


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Tenant whose webhooks it signs. \\[callers without a key]", show_default=False)] = "",
    reason: ReasonOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Make a secret and print it on standard output. It is shown only this once.

    Messages are signed with each of a tenant's secrets: make a new one, give it to the receivers, then delete the old.
    """
    made = admin_client(state_dir, admin_url, reason).ask("POST", "webhook-secrets", body={"tenant": tenant})
    remark(f"webhook secret {made['id']} of {f'tenant {tenant}' if tenant else 'callers without a key'}; the following is shown only once")
    print_found(made, output, lambda: typer.echo(made["secret"]))


@app.command(name="list")
def list_secrets(output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """List every webhook secret by its id."""
    found = admin_client(state_dir, admin_url).ask_all("webhook-secrets")
    rows = ((each["id"], each["tenant"], moment(each["created_s"])) for each in found)
    print_found(found, output, lambda: print_table(("id", "tenant", "created"), rows))


@app.command()
def delete(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The secret's id, as `create` and `list` print it.")],
    reason: ReasonOption = None,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Delete a secret: within a second nothing is signed with it any more."""
    admin_client(state_dir, admin_url, reason).ask("DELETE", "webhook-secrets", id_)
    remark(f"webhook secret {id_} is deleted")
