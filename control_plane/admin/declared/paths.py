"""Paths of the admin API for declared objects of every kind: what `tidegate apply`, `diff`, `get` and `export` call."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from fastapi import Body, FastAPI, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from control_plane.admin.actor import By
from control_plane.admin.declared.kinds import KINDS, DeclaredKind, json_schema
from control_plane.admin.declared.service import Declared, Live, Outcome
from control_plane.admin.errors import CHANGE_ERRORS, GET_ERRORS, LIST_ERRORS, error_responses
from control_plane.admin.paging import Paged
from control_plane.admin.references import References
from control_plane.admin.schema.described import Described
from control_plane.admin.schema.path_parameters import Name
from control_plane.core.errors import ErrorCode
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.validation import OWNER, OWNER_RULE

_APPLY_ERRORS = CHANGE_ERRORS | error_responses(ErrorCode.PAYLOAD_TOO_LARGE, ErrorCode.NOT_SUPPORTED, ErrorCode.MODEL_NOT_FOUND)

_KindName = Enum("_KindName", {name: name for name in KINDS}, type=str)  # type: ignore[misc]
_Kind = Annotated[_KindName, Path(description="Kind of the object, as files write it.")]
_Fields = Annotated[dict[str, Any], Body(description="Fields of the kind's specification, as `/schema` has them.")]


class DeclaredView(Described):
    """An object as files declare it."""

    kind: str
    name: str
    spec: dict[str, Any]
    """All of its fields."""
    owner: str
    """Who applies it; empty where nobody does."""
    resource_version: int
    """Version of the last change; 0 for a Model."""


class ApplicationView(Described):
    """Outcome of applying one declared object; with `dry_run`, of what applying it would change."""

    kind: str
    name: str
    outcome: Outcome
    before: dict[str, Any] | None
    """Its fields before; null: there was none."""
    after: dict[str, Any]
    warnings: list[str]
    """Sentences on what a route names that there is not, such as a model that comes later; none of a dry run, as the files may make it."""


class ApplyQuery(BaseModel):
    """Options of an application."""

    model_config = ConfigDict(extra="forbid")

    owner: str = Field("apply", pattern=f"^{OWNER.pattern}$", description=f"Who applies: {OWNER_RULE}.")
    force: bool = Field(False, description="Whether to take the object over from another owner.")
    dry_run: bool = Field(False, description="Whether to change nothing.")


def add_declared_paths(app: FastAPI, declared: Declared, references: References) -> None:
    """Add `/objects`, the paths below it, and `/schema`."""

    @app.get("/schema", tags=["objects"])
    async def schema() -> dict[str, Any]:
        """JSON Schema of one document of the files that `tidegate apply` reads."""
        return json_schema()

    @app.get("/objects/{kind}", tags=["objects"], responses=LIST_ERRORS)
    async def list_objects(kind: _Kind, paging: Paged) -> list[DeclaredView]:
        """Every object of a kind, by name."""
        found = KINDS[kind.value]
        return [_view(found, live) for live in paging.page(await declared.list_all(found), key=lambda live: live.name)]

    @app.get("/objects/{kind}/{name}", tags=["objects"], responses=GET_ERRORS)
    async def get_object(kind: _Kind, name: Name) -> DeclaredView:
        found = KINDS[kind.value]
        return _view(found, await declared.get(found, name))

    @app.patch("/objects/{kind}/{name}", tags=["objects"], responses=_APPLY_ERRORS)
    async def apply_object(kind: _Kind, name: Name, fields: _Fields, query: Annotated[ApplyQuery, Query()], by: By) -> ApplicationView:
        """Apply fields to the object, or create it: a three-way merge with what its owner applied before.

        Fields that the owner gave before and gives no more get their defaults. Refused with 409 where another owner
        applies the object, unless `force` is given.
        """
        found = KINDS[kind.value]
        done = await declared.by(by).apply(found, name, fields, owner=query.owner, force=query.force, dry_run=query.dry_run)
        before = None if done.before is None else dict(done.before)
        warnings = await references.warnings(done.value) if isinstance(done.value, Route) and not query.dry_run else []
        return ApplicationView(kind=found.name, name=name, outcome=done.outcome, before=before, after=dict(done.after), warnings=warnings)

    @app.delete("/objects/{kind}/{name}", tags=["objects"], status_code=204, responses=CHANGE_ERRORS)
    async def delete_object(kind: _Kind, name: Name, by: By) -> None:
        """Delete the object. Refused with 409 for a tenant that has valid keys."""
        await declared.by(by).delete(KINDS[kind.value], name)


def _view(kind: DeclaredKind, live: Live) -> DeclaredView:
    return DeclaredView(kind=kind.name, name=live.name, spec=dict(live.spec), owner=live.owner, resource_version=live.resource_version)
