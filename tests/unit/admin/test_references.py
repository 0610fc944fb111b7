"""What is warned of when a route is written; `test_objects` and `test_apply` have the warnings as callers see them."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from control_plane.admin.references import References
from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.model import Model, ModelState
from control_plane.models.model_service import ModelService
from control_plane.objects.domain.route import Mirror, Route, Target
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import Objects
from control_plane.rollout.rollouts import Rollouts
from tests.fakes.stores.state_store import FakeState, FakeStateStore

pytestmark = pytest.mark.virtual_time

ROUTE = Route("r", "here", targets=(Target("soon", 5), Target("soon", 5, "2")), tenants=("acme", "nobody"))
MIRRORED = Route("r", "here", mirror=Mirror("soon"))


class Models:
    """Models of one repository, which may be slow to tell or away."""

    def __init__(self, *, after_s: float = 0.0, is_away: bool = False) -> None:
        self._after_s, self._is_away = after_s, is_away

    async def list_models(self) -> list[Model]:
        await asyncio.sleep(self._after_s)
        if self._is_away:
            raise UpstreamUnavailable("Triton is restarting")
        return [Model("here", ModelState.READY, "", (), None)]


class Mirrors:
    """Stand-in for `Rollouts` with fixed warnings about mirrors; it may answer late, or fail."""

    def __init__(self, *said: str, after_s: float = 0.0, is_away: bool = False) -> None:
        self._said, self._after_s, self._is_away = said, after_s, is_away

    async def mirror_warnings(self, route: Route) -> list[str]:
        await asyncio.sleep(self._after_s)
        if self._is_away:
            raise UpstreamUnavailable("Triton is restarting")
        return [*self._said]


async def warned(models: Models, route: Route = ROUTE, mirrors: Mirrors | None = None) -> list[str]:
    objects = Objects(FakeStateStore(FakeState()))
    await objects.put(Tenant("acme"))
    references = References(cast("ModelService", models), objects, cast("Rollouts", mirrors or Mirrors()))
    return [warning.split(" now;")[0] for warning in await references.warnings(route)]


async def test_a_mirror_that_there_is_not_or_that_cannot_answer_is_warned_of() -> None:
    there_is_not = "there is no model 'soon'"
    assert await warned(Models(), MIRRORED, Mirrors("it takes other tensors")) == [there_is_not, "it takes other tensors"]
    assert await warned(Models(), MIRRORED, Mirrors(is_away=True)) == [there_is_not]
    assert await warned(Models(), ROUTE, Mirrors("of a mirror")) == [there_is_not, "there is no tenant 'nobody'"], "it has none"
    began_s = asyncio.get_running_loop().time()
    assert await warned(Models(), MIRRORED, Mirrors("late", after_s=100.0)) == [there_is_not]
    assert asyncio.get_running_loop().time() - began_s <= 2.0


async def test_each_name_that_means_nothing_is_warned_of_once() -> None:
    assert await warned(Models()) == ["there is no model 'soon'", "there is no tenant 'nobody'"]


@pytest.mark.parametrize("models", [Models(is_away=True), Models(after_s=100.0)], ids=["away", "silent"])
async def test_where_nobody_says_which_models_there_are_tenants_are_warned_of_within_two_seconds(models: Models) -> None:
    began_s = asyncio.get_running_loop().time()
    assert await warned(models) == ["there is no tenant 'nobody'"]
    assert asyncio.get_running_loop().time() - began_s <= 2.0
