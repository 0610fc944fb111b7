"""Models over the admin API, through Triton's model control."""

from __future__ import annotations

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from control_plane.admin.errors import error_responses
from control_plane.admin.fleet import nearest_tier
from control_plane.admin.views import Name
from control_plane.core.errors import ErrorCode, RouteNotFound
from control_plane.core.model import Model, ModelState
from control_plane.fleet.administration import FleetModels
from control_plane.fleet.fleet_service import FleetService
from control_plane.models.builds import ModelBuilds
from control_plane.models.domain.description import Tier
from control_plane.models.model_service import ModelService


class ModelView(BaseModel):
    """One model as Triton reports it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str
    state: ModelState
    reason: str
    versions: list[str]
    memory_bytes: int | None
    tier: Tier | None
    """In a fleet the nearest place where it is; null where there is one Triton."""
    servers: list[str]
    """In a fleet those that have it, in whatever state."""
    variant: str | None
    """The one that is served, of a model that is built in several; null where it has none or is not loaded."""
    variant_reason: str | None
    """Why that one is served and no other."""
    build: str
    """What is built of it in the background now, and what could not be; else empty."""


_LIST_ERRORS = error_responses(
    ErrorCode.UPSTREAM_UNAVAILABLE,
    ErrorCode.UPSTREAM_FAILED,
    ErrorCode.DEADLINE_EXCEEDED,
    ErrorCode.STARTUP,  # the repositories have become unusable, such as by two models of one name
)
_READ_ERRORS = _LIST_ERRORS | error_responses(ErrorCode.INVALID_ARGUMENT, ErrorCode.MODEL_NOT_FOUND)
_CHANGE_ERRORS = _READ_ERRORS | error_responses(
    ErrorCode.LOAD_FAILED,
    ErrorCode.STORE_UNAVAILABLE,
    ErrorCode.OVERLOADED,  # a fleet has no room for it
    ErrorCode.NOT_SUPPORTED,  # by a fleet
    ErrorCode.CONFLICT,  # an administrator has unloaded it meanwhile
)


def add_model_paths(
    app: FastAPI, models: ModelService | FleetModels, fleet: FleetService | None = None, builds: ModelBuilds | None = None
) -> None:
    """`/models` and what is below it."""

    async def view(name: str) -> ModelView:
        return _view(await models.get(name), fleet, builds)

    @app.get("/models", tags=["models"], responses=_LIST_ERRORS)
    async def list_models() -> list[ModelView]:
        """Every model of the repositories, loaded or not."""
        return [_view(model, fleet, builds) for model in await models.list_models()]

    @app.get("/models/{name}", tags=["models"], responses=_READ_ERRORS)
    async def get_model(name: Name) -> ModelView:
        return await view(name)

    @app.post("/models/{name}/load", tags=["models"], responses=_CHANGE_ERRORS)
    async def load_model(name: Name) -> ModelView:
        """Load it, or reload it if its files changed; answers when it is ready."""
        await models.load(name)
        return await view(name)

    @app.post("/models/{name}/unload", tags=["models"], responses=_CHANGE_ERRORS)
    async def unload_model(name: Name) -> ModelView:
        """Unload it; requests in flight finish first, so it may be UNLOADING in the answer."""
        await models.get(name)  # Triton says nothing about an unknown one
        await models.unload(name)
        return await view(name)

    @app.post("/models/{name}/release", tags=["models"], responses=_CHANGE_ERRORS)
    async def release_model(name: Name) -> ModelView:
        """In a fleet: forget that it was loaded to stay or unloaded for good; from now on its requests decide."""
        if fleet is None:
            raise RouteNotFound("this tidegate runs no fleet: its Triton keeps what was loaded, and nothing else")
        await models.get(name)
        await fleet.models.release(name)
        return await view(name)


def _view(model: Model, fleet: FleetService | None, builds: ModelBuilds | None) -> ModelView:
    facts = None if fleet is None else fleet.state.fleet.models.get(model.name)
    return ModelView(
        name=model.name,
        state=model.state,
        reason=model.reason,
        versions=list(model.versions),
        memory_bytes=model.memory_bytes,
        tier=nearest_tier(fleet, facts) if fleet is not None and facts is not None else None,
        servers=sorted(fleet.state.fleet.holders.get(model.name, {})) if fleet is not None else [],
        variant=model.variant.name if model.variant is not None else None,
        variant_reason=model.variant.reason if model.variant is not None else None,
        build=builds.state_of(model.name) if builds is not None else "",
    )
