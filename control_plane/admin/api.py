"""The admin API (FastAPI): health, models, fleet, keys, tenants, routes, rollouts, prices, declared objects, cache,
usage, dead jobs, webhook secrets, the audit log and events. OpenAPI at `/openapi.json`.

The modules beside this one add the paths; they parse, call one service method and render.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from control_plane.admin.access import AdminAccess
from control_plane.admin.console.files import add_console
from control_plane.admin.declared.paths import add_declared_paths
from control_plane.admin.declared.service import Declared
from control_plane.admin.errors import answer_errors, error_responses, error_schemas
from control_plane.admin.idempotency.middleware import Idempotency
from control_plane.admin.idempotency.ports import IdempotencyRecords
from control_plane.admin.paths.audit import add_audit_path
from control_plane.admin.paths.cache import add_cache_paths
from control_plane.admin.paths.event_streams import add_event_stream_paths
from control_plane.admin.paths.events import add_event_path
from control_plane.admin.paths.fleet import add_fleet_path
from control_plane.admin.paths.jobs import add_job_paths
from control_plane.admin.paths.keys import add_key_paths
from control_plane.admin.paths.models import add_model_paths
from control_plane.admin.paths.objects import add_price_paths, add_route_paths, add_tenant_paths
from control_plane.admin.paths.regions import add_region_path
from control_plane.admin.paths.rollouts import add_rollout_paths
from control_plane.admin.paths.usage import add_usage_path
from control_plane.admin.paths.webhooks import add_webhook_paths
from control_plane.admin.paths.whoami import add_whoami_path
from control_plane.admin.references import References
from control_plane.admin.schema.described import Described
from control_plane.admin.services import AdminServices
from control_plane.admin.unread_bodies import refuse_unread_body
from control_plane.audit.domain.entry import Actor
from control_plane.auth.access import Access
from control_plane.auth.domain.authorization import need_of_admin_call
from control_plane.core.errors import ErrorCode


class VersionView(BaseModel):
    """Version of the gateway."""

    version: str


class HealthView(Described):
    """Health of the gateway: whether it serves, and why not."""

    ready: bool
    reason: str


class StoreHealthView(Described):
    """Health of the state store: whether this gateway knows all changes by administrators; while it does not, the last known state is in
    force.
    """

    is_current: bool
    behind_s: float | None
    """Seconds since the state was last current; null: never."""


class ReadinessView(HealthView):
    """Readiness of the gateway, with what works less well than it should."""

    state_store: StoreHealthView
    degraded: list[str]
    """Degradations, a sentence each: requests are served, but not all works as it should. Empty where all is
    well."""


_PAGE_ERRORS = error_responses(ErrorCode.PERMISSION_DENIED)
_KEY_ERRORS = error_responses(ErrorCode.UNAUTHENTICATED, ErrorCode.LIMIT_EXCEEDED)
_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, or a token of the issuer that is configured."},
    "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def make_admin_api(services: AdminServices, *, version: str, console: bool = True) -> FastAPI:
    """Build the application, which has no state of its own; `console` says whether the web console is served."""
    app = _bare_application(version, services.access, services.records)
    references = References(services.models, services.objects, services.rollouts)
    declared = Declared(services.objects, services.fleet.models if services.fleet is not None else None, services.trail, Actor("admin API"))
    with _without_pydantic_v1():
        _add_health_paths(app, services, version)
        add_whoami_path(app, version)
        add_model_paths(app, services.models, services.trail, services.fleet, services.builds)
        add_fleet_path(app, services.fleet)
        add_region_path(app, services.regions, services.sent_to_regions)
        add_key_paths(app, services.keys)
        add_webhook_paths(app, services.webhook_secrets)
        add_tenant_paths(app, services.objects)
        add_route_paths(app, services.objects, references)
        add_rollout_paths(app, services.rollouts, services.objects, services.trail)
        add_price_paths(app, services.objects)
        add_declared_paths(app, declared, references)
        add_cache_paths(app, services.purges)
        add_usage_path(app, services.usage)
        add_job_paths(app, services.jobs, services.trail)
        add_audit_path(app, services.trail)
        add_event_path(app, services.events, services.access)
        add_event_stream_paths(app, services.events, services.subscriptions, services.access)
        if console:
            add_console(app)
    return app


def _bare_application(version: str, access: Access, records: IdempotencyRecords) -> FastAPI:
    """Build the application without paths: its errors, its OpenAPI document, and what each request passes first."""
    app = FastAPI(
        title="Tidegate admin API",
        version=version,
        redirect_slashes=False,  # FastAPI's redirects (trailing slash) would go to whatever host the caller sent as Host
        docs_url=None,  # its pages run a CDN's code, which could do what their reader may do: without authentication everything
        redoc_url=None,
        responses=_PAGE_ERRORS | _KEY_ERRORS,
        dependencies=[Depends(refuse_unread_body)],
    )
    app.openapi = lambda: _document(app, access)  # type: ignore[method-assign]
    app.add_middleware(Idempotency, records=records)
    app.add_middleware(AdminAccess, access=access)  # the last one added is the first one called
    answer_errors(app)
    return app


@contextmanager
def _without_pydantic_v1() -> Iterator[None]:
    """Within the block `pydantic.v1` cannot be imported: FastAPI asks of each type whether it is one of that, which nobody here
    uses, and would import its 28 modules at each start."""
    if (name := "pydantic.v1") in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # what import takes for "there is none"
    try:
        yield
    finally:
        del sys.modules[name]


def _add_health_paths(app: FastAPI, services: AdminServices, version: str) -> None:
    servers, known = services.servers, services.known

    @app.get("/health/live", tags=["health"])
    async def live() -> HealthView:
        """Whether this process answers."""
        return HealthView(ready=servers.is_up, reason="")

    @app.get("/health/ready", tags=["health"], responses=error_responses(ErrorCode.UPSTREAM_UNAVAILABLE, ErrorCode.GATEWAY_STOPPING))
    async def ready() -> ReadinessView:
        """Whether inference requests can be served. The state store need not be reachable for that."""
        servers.require_ready()
        behind_s = known.behind_s if math.isfinite(known.behind_s) else None
        state_store = StoreHealthView(is_current=known.is_current, behind_s=behind_s)
        return ReadinessView(ready=True, reason="", state_store=state_store, degraded=services.degraded())

    @app.get("/version", tags=["health"])
    async def version_of_this() -> VersionView:
        return VersionView(version=version)


def _document(app: FastAPI, access: Access) -> dict[str, Any]:
    """Return FastAPI's OpenAPI document, with the security that `AdminAccess` adds and without 422, which is
    400 here.
    """
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        if access.is_on:
            document["components"]["securitySchemes"] = _SECURITY_SCHEMES
        for unused in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(unused, None)
        document["components"]["schemas"] |= error_schemas()
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                _correct(operation, needs_key=access.is_on and need_of_admin_call(method.upper(), path) is not None)
        app.openapi_schema = document
    return app.openapi_schema


def _correct(operation: dict[str, Any], *, needs_key: bool) -> None:
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]
    if needs_key:
        operation["security"] = [{name: []} for name in _SECURITY_SCHEMES]
    else:
        for status in map(str, _KEY_ERRORS):
            del responses[status]
