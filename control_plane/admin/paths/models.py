"""Paths of the admin API for models: their states, and loading and unloading by Triton's model control."""

from __future__ import annotations

from fastapi import FastAPI, Response

from control_plane.admin.actor import By
from control_plane.admin.errors import error_responses
from control_plane.admin.paging import Paged
from control_plane.admin.rendering import rendered
from control_plane.admin.schema.described import Described
from control_plane.admin.schema.path_parameters import Name
from control_plane.audit.trail import AuditTrail
from control_plane.core.errors import ErrorCode, RouteNotFound
from control_plane.core.model import Model, ModelState
from control_plane.fleet.administration import FleetModels
from control_plane.fleet.fleet_service import FleetService
from control_plane.models.builds import ModelBuilds
from control_plane.models.domain.description import Tier
from control_plane.models.model_service import ModelService


class ModelView(Described):
    """One model as Triton reports it."""

    name: str
    state: ModelState
    reason: str
    versions: list[str]
    memory_bytes: int | None
    tier: Tier | None
    """In a fleet, the nearest tier that has it (hot, warm, cold); null for a single Triton."""
    servers: list[str]
    """In a fleet, the servers that have it, in whatever state."""
    variant: str | None
    """The variant that is served; null for a model without variants, or one that is not loaded."""
    variant_reason: str | None
    """Why this variant is served and no other."""
    build: str
    """State of its background build: what is being built, and what failed; else empty."""


_LIST_ERRORS = error_responses(
    ErrorCode.UPSTREAM_UNAVAILABLE,
    ErrorCode.UPSTREAM_FAILED,
    ErrorCode.DEADLINE_EXCEEDED,
    ErrorCode.STARTUP,  # the repositories have become unusable, such as by two models with the same name
)
_PAGE_ERRORS = _LIST_ERRORS | error_responses(ErrorCode.INVALID_ARGUMENT)
_READ_ERRORS = _LIST_ERRORS | error_responses(ErrorCode.INVALID_ARGUMENT, ErrorCode.MODEL_NOT_FOUND)
_CHANGE_ERRORS = _READ_ERRORS | error_responses(
    ErrorCode.LOAD_FAILED,
    ErrorCode.STORE_UNAVAILABLE,
    ErrorCode.OVERLOADED,  # a fleet has no room for it
    ErrorCode.NOT_SUPPORTED,  # the fleet cannot do it
    ErrorCode.CONFLICT,  # an administrator has unloaded it in the meantime
)


def add_model_paths(
    app: FastAPI,
    models: ModelService | FleetModels,
    trail: AuditTrail,
    fleet: FleetService | None = None,
    builds: ModelBuilds | None = None,
) -> None:
    """Add `/models` and the paths below it."""

    async def view(name: str) -> ModelView:
        return _view(await models.get(name), fleet, builds)

    @app.get("/models", tags=["models"], response_model=list[ModelView], responses=_PAGE_ERRORS)
    async def list_models(paging: Paged, response: Response) -> Response:
        """Every model of the repositories, loaded or not."""
        page = paging.page(await models.list_models(), key=lambda model: model.name)
        shown = await rendered(_view(model, fleet, builds) for model in page)
        return Response(f"[{shown}]", media_type="application/json", headers=dict(response.headers))

    @app.get("/models/{name}", tags=["models"], responses=_READ_ERRORS)
    async def get_model(name: Name) -> ModelView:
        return await view(name)

    @app.post("/models/{name}/load", tags=["models"], responses=_CHANGE_ERRORS)
    async def load_model(name: Name, by: By, everywhere: bool = False) -> ModelView:
        """Load the model, or reload it if its files changed. Responds when it is ready.

        With `everywhere` it is loaded on every server of a fleet that suits it, and on those that join.
        """
        async with trail.recorded(by, "load", "Model", name, after={"everywhere": True} if everywhere else None):
            await (fleet.models.load_everywhere(name) if everywhere and fleet is not None else models.load(name))
        return await view(name)

    @app.post("/models/{name}/unload", tags=["models"], responses=_CHANGE_ERRORS)
    async def unload_model(name: Name, by: By) -> ModelView:
        """Unload the model. Requests in flight finish first, so it may be UNLOADING in the response."""
        await models.get(name)  # raises ModelNotFound: Triton accepts the unload of a model that it does not know
        async with trail.recorded(by, "unload", "Model", name):
            await models.unload(name)
        return await view(name)

    @app.post("/models/{name}/release", tags=["models"], responses=_CHANGE_ERRORS)
    async def release_model(name: Name, by: By) -> ModelView:
        """In a fleet, undo `load` and `unload`: the model is loaded on demand and evicted again."""
        if fleet is None:
            raise RouteNotFound("this tidegate runs no fleet: only `load` and `unload` decide which models its Triton has")
        await models.get(name)
        async with trail.recorded(by, "release", "Model", name):
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
        tier=fleet.state.fleet.nearest_tier(facts) if fleet is not None and facts is not None else None,
        servers=sorted(server.name for server, _ in fleet.state.fleet.replicas(model.name)) if fleet is not None else [],
        variant=model.variant.name if model.variant is not None else None,
        variant_reason=model.variant.reason if model.variant is not None else None,
        build=builds.state_of(model.name) if builds is not None else "",
    )
