"""`tidegate keys`: makes, lists, rotates and revokes API keys over the admin API.

The first key cannot be made that way, as the admin API demands a key: `create --offline` writes to the store
itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from control_plane.audit.domain.entry import Actor
from control_plane.auth.keys import Keys
from control_plane.cli.common.options import (
    AdminUrlOption,
    ReasonOption,
    StateDirOption,
    StateUrlOption,
    admin_client,
    locate_store_settings,
    offline_actor,
)
from control_plane.cli.common.output import Shape, ShapeOption, print_found
from control_plane.cli.common.printing import moment, print_table, remark
from control_plane.core.errors import Conflict, InvalidRequest
from control_plane.core.scope import SCOPE_NAMES, Scope, parse_scope
from control_plane.core.text.duration import parse_duration_s
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import Objects
from control_plane.settings import Settings
from control_plane.storage.store_record import record_of

app = typer.Typer(help="Make, list, rotate and revoke API keys.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The part of the key between `tg_` and the secret.")]


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Tenant that requests with this key are counted for.")],
    scope: Annotated[list[str], typer.Option(help=f"infer:GLOB (names of models and routes), {SCOPE_NAMES}; repeatable.")],
    expires: Annotated[str | None, typer.Option(metavar="DURATION", help="How long it is valid, such as 90d. \\[for ever]")] = None,
    description: Annotated[str, typer.Option(help="What the key is for.")] = "",
    offline: Annotated[
        bool, typer.Option("--offline", help="Write to the store directly, and make the tenant if there is none: for the first key.")
    ] = False,
    reason: ReasonOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_url: StateUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Make a key and print it on standard output. It is shown only this once."""
    if (admin_url if offline else state_url) is not None:
        raise InvalidRequest(
            "--state-url is for use with --offline, --admin-url without it: a running tidegate has an admin API and knows its own store"
        )
    lifetime_s = None if expires is None else parse_duration_s(expires)
    if offline and output is not Shape.TABLE:
        raise InvalidRequest("--output is of the admin API's answer; with --offline the key alone is printed")
    if offline:
        settings = locate_store_settings(state_dir, state_url)
        scopes = [parse_scope(text) for text in scope]
        stored = f", stored in {record_of(settings.state.state_url).place or settings.process.state_dir}"
        id_, text = asyncio.run(_create_offline(settings, tenant, scopes, lifetime_s, description, offline_actor(reason)))
    else:
        spec = {"tenant": tenant, "scopes": scope, "lifetime_s": lifetime_s, "description": description}
        made = admin_client(state_dir, admin_url, reason).ask("POST", "keys", body=spec)
        if output is not Shape.TABLE:
            print_found(made, output, lambda: None)
            return
        stored, id_, text = "", made["id"], made["text"]
    remark(f"key {id_} of tenant {tenant}{stored}; the following is shown only once")
    typer.echo(text)


@app.command(name="list")
def list_keys(output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """List every key, also those that are no longer valid."""
    found = admin_client(state_dir, admin_url).ask_all("keys")
    print_found(found, output, lambda: _tabulate(found))


def _tabulate(found: list[dict[str, Any]]) -> None:
    print_table(
        ("id", "tenant", "scopes", "state", "created", "ends", "description"),
        (
            (
                key["id"],
                key["tenant"],
                " ".join(key["scopes"]),
                _state(key),
                moment(key["created_s"]),
                moment(_end_s(key)),
                key["description"],
            )
            for key in found
        ),
    )


@app.command()
def rotate(
    id_: IdArgument,
    overlap: Annotated[str, typer.Option(metavar="DURATION", help="For how long the old key is valid beside the new one.")] = "24h",
    reason: ReasonOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Replace a key by a new one with the same tenant, scopes and lifetime, and print the new one as `create`
    does.
    """
    overlap_s = parse_duration_s(overlap)
    made = admin_client(state_dir, admin_url, reason).ask("POST", "keys", id_, "rotate", body={"overlap_s": overlap_s})
    remark(f"key {made['id']} replaces {id_}, which is valid for another {overlap}; the following is shown only once")
    print_found(made, output, lambda: typer.echo(made["text"]))


@app.command()
def revoke(
    id_: IdArgument,
    reason: ReasonOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Revoke a key: within a second no gateway accepts it."""
    revoked = admin_client(state_dir, admin_url, reason).ask("DELETE", "keys", id_)
    print_found(revoked, output, lambda: remark(f"key {id_} is revoked"))


async def _create_offline(
    settings: Settings, tenant: str, scopes: Sequence[Scope], lifetime_s: float | None, description: str, actor: Actor
) -> tuple[str, str]:
    from control_plane.app.stores import audited_state

    async with audited_state(settings.state.state_url, settings.process.state_dir, actor) as store:
        with suppress(Conflict):  # the tenant exists, and keeps its limits
            await Objects(store).put(Tenant(tenant), expected=0)
        expires_s = None if lifetime_s is None else time.time() + lifetime_s
        key, text = await Keys(store).create(tenant, scopes, expires_s=expires_s, description=description)
        return key.id, text


def _end_s(key: Mapping[str, Any]) -> float | None:
    return min((end_s for end_s in (key["expires_s"], key["revoked_s"]) if end_s is not None), default=None)


def _state(key: Mapping[str, Any]) -> str:
    now_s = time.time()
    if key["revoked_s"] is not None and key["revoked_s"] <= now_s:
        return "revoked"
    return "expired" if key["expires_s"] is not None and key["expires_s"] <= now_s else "valid"
