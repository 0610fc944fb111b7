"""Purging the response cache over the admin API."""

from __future__ import annotations

from fastapi import FastAPI

from control_plane.admin.errors import error_responses
from control_plane.admin.views import Name
from control_plane.cache.purges import Purges
from control_plane.core.errors import ErrorCode

_ERRORS = error_responses(ErrorCode.STORE_UNAVAILABLE)


def add_cache_paths(app: FastAPI, purges: Purges) -> None:
    """`/cache` and what is below it."""

    @app.delete("/cache", tags=["cache"], status_code=204, responses=_ERRORS)
    async def purge_cache() -> None:
        """Every answer that is kept is found no more, on all gateways within a second."""
        await purges.purge()

    @app.delete("/cache/{name}", tags=["cache"], status_code=204, responses=_ERRORS | error_responses(ErrorCode.INVALID_ARGUMENT))
    async def purge_model(name: Name) -> None:
        """As `/cache`, of one model, loaded or not, or of the model behind a route; with it of the ensembles loaded here that use it."""
        await purges.purge(name)
