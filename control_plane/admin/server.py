"""The admin port: the admin API behind an HTTP server of the data ports' kind, within limits that hold before authentication."""

from __future__ import annotations

from dataclasses import replace

from fastapi import FastAPI

from control_plane.admin.access import AdminAccess
from control_plane.admin.asgi_bridge import AsgiBridge, scope_of
from control_plane.admin.errors import render_answer
from control_plane.auth.access import Access
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.http.request_reader import HttpLimits
from control_plane.frontends.http.server import HttpServer
from control_plane.host.exposure import AllowedHosts
from control_plane.protocols.http1 import HttpRequest

MAX_BODY_BYTES = 256 * 2**10
"""The largest there is, a route with a thousand tenants of the longest names, fits."""

_MAX_BUFFERED_BYTES = 32 * MAX_BODY_BYTES
"""The most memory that request bodies beyond 64 KiB may hold at a time, all callers together."""


def make_admin_server(api: FastAPI, access: Access, limits: HttpLimits, hosts: AllowedHosts | None) -> HttpServer:
    """`limits` are the data ports'; bodies are smaller here. `hosts` are the names that it may be asked by; None: any."""

    def admit(request: HttpRequest) -> None:
        AdminAccess.authorize(scope_of(request), access)

    return HttpServer(
        AsgiBridge(api).answer,
        render_answer,
        replace(limits, max_body_bytes=MAX_BODY_BYTES),
        admit=admit,
        budget=BodyBudget(_MAX_BUFFERED_BYTES),
        hosts=hosts,
    )
