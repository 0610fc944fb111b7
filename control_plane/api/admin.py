"""The admin API: health, version, and models through Triton's model control. OpenAPI at `/docs`."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from control_plane.api.status import STATUS
from control_plane.domain.errors import ControlPlaneError, ErrorCode, InvalidRequest
from control_plane.domain.model import MODEL_NAME, Model, ModelState
from control_plane.policy.exposure import is_loopback
from control_plane.services.models import ModelService
from control_plane.services.servers import Servers


class ModelView(BaseModel):
    """One model as Triton reports it."""

    name: str
    state: ModelState
    reason: str
    versions: list[str]
    memory_bytes: int | None

    @classmethod
    def of(cls, model: Model) -> ModelView:
        return cls(name=model.name, state=model.state, reason=model.reason, versions=list(model.versions), memory_bytes=model.memory_bytes)


class ErrorView(BaseModel):
    """Why a call failed; `code` is stable, `error` is for people."""

    error: str
    code: str
    retryable: bool


class VersionView(BaseModel):
    version: str


class HealthView(BaseModel):
    ready: bool
    reason: str


ModelName = Annotated[str, Path(pattern=f"^{MODEL_NAME.pattern}$", description="A model's name, as its folder is called.")]


def _errors(*codes: ErrorCode) -> dict[int | str, dict[str, Any]]:
    return {STATUS[code].http: {"model": ErrorView} for code in codes}


_READ_ERRORS = _errors(ErrorCode.MODEL_NOT_FOUND, ErrorCode.UPSTREAM_UNAVAILABLE, ErrorCode.UPSTREAM_FAILED, ErrorCode.DEADLINE_EXCEEDED)
_CHANGE_ERRORS = _READ_ERRORS | _errors(ErrorCode.LOAD_FAILED)


def make_admin_api(*, models: ModelService, servers: Servers, version: str) -> FastAPI:
    """Build the application; it holds no state of its own."""
    responses: dict[int | str, dict[str, Any]] = {403: {"model": ErrorView}, "default": {"model": ErrorView}}
    app = FastAPI(title="Tidegate admin API", version=version, responses=responses)
    app.add_exception_handler(ControlPlaneError, _render_error)
    app.add_exception_handler(RequestValidationError, _render_invalid)
    app.middleware("http")(_refuse_foreign_pages)

    @app.get("/health/live", tags=["health"])
    async def live() -> HealthView:
        """Whether this process answers."""
        return HealthView(ready=servers.is_up, reason="")

    @app.get("/health/ready", tags=["health"], responses=_errors(ErrorCode.UPSTREAM_UNAVAILABLE))
    async def ready() -> HealthView:
        """Whether inference requests can be served."""
        servers.pick()
        return HealthView(ready=True, reason="")

    @app.get("/version", tags=["health"])
    async def version_of_this() -> VersionView:
        return VersionView(version=version)

    @app.get("/models", tags=["models"], responses=_READ_ERRORS)
    async def list_models() -> list[ModelView]:
        """Every model of the repositories, loaded or not."""
        return [ModelView.of(model) for model in await models.list_models()]

    @app.get("/models/{name}", tags=["models"], responses=_READ_ERRORS)
    async def get_model(name: ModelName) -> ModelView:
        return ModelView.of(await models.get(name))

    @app.post("/models/{name}/load", tags=["models"], responses=_CHANGE_ERRORS)
    async def load_model(name: ModelName) -> ModelView:
        """Load it, or reload it if its files changed; answers when it is ready."""
        await models.load(name)
        return ModelView.of(await models.get(name))

    @app.post("/models/{name}/unload", tags=["models"], responses=_CHANGE_ERRORS)
    async def unload_model(name: ModelName) -> ModelView:
        """Unload it; requests in flight finish first, so it may be UNLOADING in the answer."""
        await models.get(name)  # Triton says nothing about an unknown one
        await models.unload(name)
        return ModelView.of(await models.get(name))

    return app


async def _render_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ControlPlaneError)
    status = STATUS[error.code]
    view = ErrorView(error=str(error), code=error.code.value, retryable=status.retryable)
    return JSONResponse(view.model_dump(), status_code=status.http, headers={"Retry-After": "1"} if status.retryable else None)


async def _render_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    return await _render_error(request, InvalidRequest(said))


async def _refuse_foreign_pages(request: Request, call_next: Any) -> Response:
    """A page of another site, open in a browser on this machine, must not load models here: its Origin tells.

    A site that lets its own name resolve to this machine sends that name as Host too, so it must be one of loopback.
    """
    origin = request.headers.get("origin")
    if origin is not None and not _is_own_page(origin, request.headers.get("host", "")):
        view = ErrorView(error=f"requests from pages of {origin} are refused", code="foreign_origin", retryable=False)
        return JSONResponse(view.model_dump(), status_code=403)
    response: Response = await call_next(request)
    return response


def _is_own_page(origin: str, host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return origin.partition("://")[2] == host and is_loopback(name or "")
