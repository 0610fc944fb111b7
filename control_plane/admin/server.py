"""The admin port: the admin API behind the same HTTP server as the data ports, with limits that hold before
authentication.
"""

from __future__ import annotations

from dataclasses import replace

from fastapi import FastAPI

from control_plane.admin.access import AdminAccess
from control_plane.admin.asgi_bridge import AsgiBridge, scope_of
from control_plane.admin.errors import render_answer
from control_plane.auth.access import Access
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.http.limits import HttpLimits
from control_plane.frontends.http.server import HttpServer
from control_plane.host.network.exposure import AllowedHosts
from control_plane.protocols.http1 import HttpRequest

MAX_BODY_BYTES = 256 * 2**10
"""Largest request body. The largest valid one, a route with a thousand tenants of the longest names, fits."""

_MAX_BUFFERED_BYTES = 32 * MAX_BODY_BYTES
"""Bytes of memory that request bodies beyond 64 KiB may take at a time, of all callers together."""


def make_admin_server(api: FastAPI, access: Access, limits: HttpLimits, hosts: AllowedHosts | None) -> HttpServer:
    """Make the server; `limits` are the data ports', with smaller bodies. `hosts` is its host check, None for
    no check.
    """

    def admit(request: HttpRequest) -> None:
        # Called before the body is read; the middleware checks again, since it also guards the ASGI
        # application alone.
        AdminAccess.authorize(scope_of(request), access)

    return HttpServer(
        AsgiBridge(api).answer,
        render_answer,
        replace(limits, max_body_bytes=MAX_BODY_BYTES),
        admit=admit,
        budget=BodyBudget(_MAX_BUFFERED_BYTES),
        hosts=hosts,
    )
