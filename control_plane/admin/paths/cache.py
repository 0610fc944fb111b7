"""Paths of the admin API that purge the response cache."""

from __future__ import annotations

from fastapi import FastAPI

from control_plane.admin.actor import By
from control_plane.admin.errors import error_responses
from control_plane.admin.schema.path_parameters import Name
from control_plane.cache.purges import Purges
from control_plane.core.errors import ErrorCode

_ERRORS = error_responses(ErrorCode.STORE_UNAVAILABLE)


def add_cache_paths(app: FastAPI, purges: Purges) -> None:
    """Add `/cache` and the paths below it."""

    @app.delete("/cache", tags=["cache"], status_code=204, responses=_ERRORS)
    async def purge_cache(by: By) -> None:
        """Purge the cached responses of all models, on all gateways within a second."""
        await purges.by(by).purge()

    @app.delete("/cache/{name}", tags=["cache"], status_code=204, responses=_ERRORS | error_responses(ErrorCode.INVALID_ARGUMENT))
    async def purge_model(name: Name, by: By) -> None:
        """Purge the cached responses of one model, or of the model behind a route, and of loaded ensembles
        that use it.
        """
        await purges.by(by).purge(name)
