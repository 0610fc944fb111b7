"""Paths of the admin API for tenants, routes and prices: PUT replaces, PATCH changes single fields.

Writes can be conditional on the version that was read (ETag, If-Match, If-None-Match; RFC 9110, section 13).
"""

from __future__ import annotations

from types import GenericAlias
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Header, Response
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from control_plane.admin.actor import By
from control_plane.admin.errors import CHANGE_ERRORS, GET_ERRORS, LIST_ERRORS, error_responses
from control_plane.admin.paging import Paged
from control_plane.admin.references import References
from control_plane.admin.schema.path_parameters import Name
from control_plane.admin.schema.views import (
    ObjectT,
    ObjectView,
    PricePatch,
    PriceSpec,
    PriceView,
    RoutePatch,
    RouteSpec,
    RouteView,
    RouteWritten,
    TenantSpec,
    TenantView,
)
from control_plane.core.errors import Conflict, ErrorCode
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import Objects, Versioned

_TAGGED: dict[int | str, dict[str, Any]] = {
    200: {"headers": {"ETag": {"schema": {"type": "string"}, "description": "The resource_version, for `If-Match`."}}}
}
_PUT_ERRORS = LIST_ERRORS | error_responses(ErrorCode.PAYLOAD_TOO_LARGE, ErrorCode.CONFLICT)
_PATCH_ERRORS = _PUT_ERRORS | error_responses(ErrorCode.OBJECT_NOT_FOUND)

# SkipJsonSchema keeps null out of the document: a header may be absent, but is never null.
_ETag = Annotated[str, Field(pattern='^"[1-9][0-9]{0,14}"$')] | SkipJsonSchema[None]
_Any = Annotated[str, Field(pattern=r"^\*$")] | SkipJsonSchema[None]
IfMatch = Annotated[_ETag, Header(description='`"RESOURCE_VERSION"`, the ETag that the object must have now; else the response is 409.')]
IfNoneMatch = Annotated[_Any, Header(description="`*`: the object must not exist; else the response is 409.")]


async def _expected(if_match: IfMatch = None) -> int | None:
    return None if if_match is None else int(if_match.strip('"'))


async def _expected_or_none(expected: _Expected, if_none_match: IfNoneMatch = None) -> int | None:
    if expected is not None and if_none_match is not None:
        raise Conflict("if-match demands that the object exists and if-none-match that it does not; send only one of them")
    return expected if if_none_match is None else 0


_Expected = Annotated[int | None, Depends(_expected)]
_ExpectedOrNone = Annotated[int | None, Depends(_expected_or_none)]


def _name(held: Versioned[Any]) -> str:
    return str(held.value.name)


ViewT = TypeVar("ViewT", bound=ObjectView[Any])


def _with_etag(view: ViewT, response: Response) -> ViewT:
    response.headers["ETag"] = f'"{view.resource_version}"'
    return view


def _add_reads(app: FastAPI, objects: Objects, kind: type[ObjectT], view: type[ObjectView[ObjectT]], *, noun: str) -> None:
    """Add the paths that list and show one kind of objects."""
    many = f"{noun}s"

    @app.get(f"/{many}", name=f"list_{many}", tags=[many], response_model=GenericAlias(list, view), responses=LIST_ERRORS)
    async def list_objects(paging: Paged) -> Any:
        return [view.of(held) for held in paging.cut(await objects.list_all(kind, paging.part), key=_name)]

    @app.get(f"/{many}/{{name}}", name=f"get_{noun}", tags=[many], response_model=view, responses=GET_ERRORS | _TAGGED)
    async def get_object(name: Name, response: Response) -> Any:
        return _with_etag(view.of(await objects.get(kind, name)), response)


def _add_delete(app: FastAPI, objects: Objects, kind: type[ObjectT], *, noun: str, text: str | None = None) -> None:
    """Add the path that deletes an object of one kind, which OpenAPI describes by `text`."""
    many = f"{noun}s"

    @app.delete(f"/{many}/{{name}}", name=f"delete_{noun}", tags=[many], status_code=204, description=text, responses=CHANGE_ERRORS)
    async def delete_object(name: Name, expected: _Expected, by: By) -> None:
        await objects.by(by).delete(kind, name, expected)


def add_tenant_paths(app: FastAPI, objects: Objects) -> None:
    """Add `/tenants` and the paths below it."""
    _add_reads(app, objects, Tenant, TenantView, noun="tenant")

    @app.put("/tenants/{name}", tags=["tenants"], responses=_PUT_ERRORS | _TAGGED)
    async def put_tenant(name: Name, spec: TenantSpec, expected: _ExpectedOrNone, by: By, response: Response) -> TenantView:
        """Create the tenant, or replace it as a whole: fields that are not given get their defaults."""
        return _with_etag(TenantView.of(await objects.by(by).put(spec.named(name), expected)), response)

    @app.patch("/tenants/{name}", tags=["tenants"], responses=_PATCH_ERRORS | _TAGGED)
    async def patch_tenant(name: Name, patch: TenantSpec, expected: _Expected, by: By, response: Response) -> TenantView:
        """Change the given fields only (RFC 7396; null is allowed only where null is a value)."""
        return _with_etag(TenantView.of(await objects.by(by).patch(Tenant, name, patch.patched, expected)), response)

    _add_delete(app, objects, Tenant, noun="tenant", text="Delete the tenant. Refused with 409 while it has valid keys.")


def add_route_paths(app: FastAPI, objects: Objects, references: References) -> None:
    """Add `/routes` and the paths below it."""

    async def written(held: Versioned[Route], response: Response) -> RouteWritten:
        view = _with_etag(RouteWritten.of(held), response)
        view.warnings = await references.warnings(held.value)
        return view

    _add_reads(app, objects, Route, RouteView, noun="route")

    @app.put("/routes/{name}", tags=["routes"], responses=_PUT_ERRORS | _TAGGED)
    async def put_route(name: Name, spec: RouteSpec, expected: _ExpectedOrNone, by: By, response: Response) -> RouteWritten:
        """Create the route, or replace it as a whole: fields that are not given get their defaults."""
        return await written(await objects.by(by).put(spec.named(name), expected), response)

    @app.patch("/routes/{name}", tags=["routes"], responses=_PATCH_ERRORS | _TAGGED)
    async def patch_route(name: Name, patch: RoutePatch, expected: _Expected, by: By, response: Response) -> RouteWritten:
        """Change the given fields only (RFC 7396; null is allowed only where null is a value)."""
        return await written(await objects.by(by).patch(Route, name, patch.patched, expected), response)

    _add_delete(app, objects, Route, noun="route")


def add_price_paths(app: FastAPI, objects: Objects) -> None:
    """Add `/prices` and the paths below it."""
    _add_reads(app, objects, Price, PriceView, noun="price")

    @app.put("/prices/{name}", tags=["prices"], responses=_PUT_ERRORS | _TAGGED)
    async def put_price(name: Name, spec: PriceSpec, expected: _ExpectedOrNone, by: By, response: Response) -> PriceView:
        """Create the price, or replace it as a whole. It also prices past usage, from its `from_s` on."""
        return _with_etag(PriceView.of(await objects.by(by).put(spec.named(name), expected)), response)

    @app.patch("/prices/{name}", tags=["prices"], responses=_PATCH_ERRORS | _TAGGED)
    async def patch_price(name: Name, patch: PricePatch, expected: _Expected, by: By, response: Response) -> PriceView:
        """Change the given fields only (RFC 7396; null is allowed only where null is a value)."""
        return _with_etag(PriceView.of(await objects.by(by).patch(Price, name, patch.patched, expected)), response)

    _add_delete(app, objects, Price, noun="price")
