"""Tells which models have a background lane, in which callers' requests interrupt the computation of jobs.

`admission/permit` asks before it lets background work begin.
"""

from __future__ import annotations

from collections.abc import Callable

from control_plane.core.errors import ControlPlaneError
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.inference.domain.background_lane import has_background_lane
from control_plane.inference.model_configuration.model_configs import ModelConfigs
from control_plane.models.fingerprints import Fingerprints

_ASK_TIMEOUT_S = 2.0
"""Longest wait of a job for what its model's configuration says."""


class BackgroundLanes:
    """Table of the loaded models that have a background lane; one of which that cannot be known now has none."""

    def __init__(self, dispatch: Dispatch, fingerprints: Fingerprints, *, is_loaded: Callable[[str], bool]) -> None:
        """`is_loaded` says of a model whether it needs no load, as asking it would lead to one."""
        self._configs = ModelConfigs(dispatch, fingerprints, has_background_lane)
        self._is_loaded = is_loaded

    async def has(self, model: str) -> bool:
        """Whether the model is known to have a background lane."""
        if not self._is_loaded(model):
            return False
        try:
            return await self._configs.get(model, timeout_s=_ASK_TIMEOUT_S)
        except ControlPlaneError:
            return False
