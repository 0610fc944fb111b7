"""Finds out which models embed texts, by their configurations (`inference/model_configs`).

Called by `embeddings` for each call and by `frontends/openai` for its list of models.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from control_plane.auth.access import Access
from control_plane.auth.domain.authorization import Need
from control_plane.core.errors import (
    ControlPlaneError,
    InvalidRequest,
    ModelNotFound,
    PermissionDenied,
)
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.core.scope import Right
from control_plane.embeddings.domain.text_model import TextModel
from control_plane.embeddings.domain.text_model_config import TEXT_MODEL_REQUIREMENTS, read_text_model
from control_plane.inference.dispatch import Dispatch
from control_plane.inference.model_configs import ModelConfigs
from control_plane.models.fingerprints import Fingerprints

_log = logging.getLogger(__name__)

_REQUIRE_S = 5.0
"""Seconds for which a caller that hands in work for later waits to hear whether its model is one."""


class TextModels:
    """Descriptions of models: which of them embed texts, and the names of their tensors."""

    def __init__(
        self, dispatch: Dispatch, fingerprints: Fingerprints, access: Access, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._dispatch = dispatch
        self._access = access
        self._configs = ModelConfigs(dispatch, fingerprints, read_text_model, now_s=now_s)

    async def describe(self, name: str, version: str = "", *, timeout_s: float) -> TextModel:
        """The description of a text-embedding model, from the cache or from Triton.

        Raises:
            ModelNotFound: it is not loaded.
            InvalidRequest: it is no text-embedding model.
            UpstreamUnavailable, UpstreamFailed, DeadlineExceeded.
        """
        model = await self._configs.get(name, version, timeout_s=timeout_s)
        if model is None:
            raise InvalidRequest(f"model {name!r} is no text-embedding model: {TEXT_MODEL_REQUIREMENTS}", field="model")
        return model

    async def require(self, principal: Principal, name: str) -> None:
        """Require that `principal` may embed texts by a model or route; a model of which nothing is heard now passes.

        Raises PermissionDenied, ModelNotFound, InvalidRequest: it is no text-embedding model.
        """
        route = self._access.route(name)
        if principal is not ANONYMOUS:
            self._access.require_inference(principal, name, route)
        model, version = (name, "") if route is None else (route.model, route.version)
        try:
            await self.describe(model, version, timeout_s=_REQUIRE_S)
        except (InvalidRequest, ModelNotFound):
            raise
        except ControlPlaneError as exc:  # it is being loaded, or its server is away
            _log.debug("whether %s embeds texts is not known now: %s", name, exc)

    async def usable(self, principal: Principal, *, timeout_s: float) -> list[str]:
        """The names that `principal` may embed texts with, sorted: of ready text models, and of routes to
        them.

        Raises UpstreamUnavailable, UpstreamFailed, DeadlineExceeded.
        """
        ready = await self._dispatch.ready()
        targets = {name: (name, "") for name in ready} | {route.name: (route.model, route.version) for route in self._access.routes}
        allowed = [name for name in sorted(targets) if targets[name][0] in ready and self._may_use(principal, name)]
        return [name for name in allowed if await self._is_one(*targets[name], timeout_s)]

    def _may_use(self, principal: Principal, name: str) -> bool:
        try:
            self._access.require(principal, Need(Right.INFER, name))
        except PermissionDenied:
            return False
        return True

    async def _is_one(self, name: str, version: str, timeout_s: float) -> bool:
        try:
            await self.describe(name, version, timeout_s=timeout_s)
        except (InvalidRequest, ModelNotFound):
            return False
        return True
