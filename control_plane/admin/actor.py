"""Who makes a call of the admin API, and why: what the audit log says of each change."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, Header, Request
from pydantic.json_schema import SkipJsonSchema

from control_plane.audit.domain.entry import Actor
from control_plane.core.principal import ANONYMOUS, Principal

PRINCIPAL = "tidegate.principal"
"""Where `admin/access` puts the caller, in the ASGI scope."""

Reason = Annotated[
    str | SkipJsonSchema[None],
    Header(alias="x-tidegate-reason", description="Why, for the audit log: percent-encoded UTF-8, cut to 500 characters."),
]


async def _actor(request: Request, reason: Reason = None) -> Actor:
    return Actor(_who(request.scope.get(PRINCIPAL, ANONYMOUS), request.client.host if request.client else ""), unquote(reason or ""))


By = Annotated[Actor, Depends(_actor)]
"""The caller, as a parameter of a handler that changes something."""


def _who(principal: Principal, host: str) -> str:
    if principal is ANONYMOUS:
        return f"anonymous at {host}" if host else "anonymous at the Unix socket"
    return f"{principal.tenant}/{principal.key_id}"
