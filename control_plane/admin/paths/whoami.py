"""Path of the admin API by which a caller sees what its key may do."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI, Request

from control_plane.admin.actor import PRINCIPAL
from control_plane.admin.schema.described import Described
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.core.scope import Right


class CallerView(Described):
    """The caller, as the admin API knows it."""

    tenant: str
    """Tenant of the key or token; empty where authentication is off."""
    key_id: str
    """Id of the key, or the subject of the token; empty where authentication is off."""
    rights: list[str]
    """What it may do, with all that its scopes include: any of repository, events, metrics,
    viewer, operator and admin."""
    version: str
    """Version of the gateway."""


def _caller(request: Request) -> Principal:
    principal: Principal = request.scope.get(PRINCIPAL, ANONYMOUS)
    return principal


def add_whoami_path(app: FastAPI, version: str) -> None:
    """Add `/whoami`."""

    @app.get("/whoami", tags=["health"])
    async def whoami(caller: Annotated[Principal, Depends(_caller)]) -> CallerView:
        """Who the caller is, and what it may do here."""
        rights = [right.value for right in Right if right is not Right.INFER and caller.scopes.allow(right)]
        return CallerView(tenant=caller.tenant, key_id=caller.key_id, rights=rights, version=version)
