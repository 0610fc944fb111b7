"""Check of the names that a route refers to, for warnings: models that no repository has, tenants that nobody has made, mirrors
that cannot answer its requests.

None is refused: the model or tenant may come later, and files may be applied in any order. Called by
`admin/paths/objects` and `admin/declared/paths` after a route was written.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from control_plane.core.errors import ControlPlaneError
from control_plane.fleet.administration import FleetModels
from control_plane.models.model_service import ModelService
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import Objects
from control_plane.rollout.rollouts import Rollouts

_TIMEOUT_S = 2.0
"""Seconds for Triton and the state store to say what there is. What they do not say in time is not warned of: the route has
been written, and its writer waits."""


class References:
    """Checker of the models and tenants that routes name."""

    def __init__(self, models: ModelService | FleetModels, objects: Objects, rollouts: Rollouts) -> None:
        self._models = models
        self._objects = objects
        self._rollouts = rollouts

    async def warnings(self, route: Route) -> list[str]:
        """Return a sentence for each name of a route that means nothing now."""
        models, tenants = await self._missing_models(route), await self._missing_tenants(route)
        return [
            *(f"there is no model {name!r} now; `tidegate models list` shows those there are" for name in models),
            *(f"there is no tenant {name!r} now; `tidegate tenants list` shows those there are" for name in tenants),
            *(await self._mirror_warnings(route) if route.mirror is not None else ()),
        ]

    async def _mirror_warnings(self, route: Route) -> list[str]:
        with suppress(ControlPlaneError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._rollouts.mirror_warnings(route)
        return []

    async def _missing_models(self, route: Route) -> list[str]:
        named = route.models if route.mirror is None else (*route.models, route.mirror.model)
        there = set(named)
        with suppress(ControlPlaneError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                there = {model.name for model in await self._models.list_models()}
        return [name for name in dict.fromkeys(named) if name not in there]

    async def _missing_tenants(self, route: Route) -> list[str]:
        named = route.tenants or ()
        there = set(named)
        if named:
            with suppress(ControlPlaneError, TimeoutError):
                async with asyncio.timeout(_TIMEOUT_S):
                    there = {held.value.name for held in await self._objects.list_all(Tenant)}
        return [name for name in dict.fromkeys(named) if name not in there]
