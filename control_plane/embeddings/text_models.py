"""Finds out which models embed texts: reads Triton's model configuration, cached for as long as the model is
loaded.

Called by `embeddings` for each call and by `frontends/openai` for its list of models.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from control_plane.auth.access import Access
from control_plane.auth.domain.authorization import Need
from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.errors import (
    ControlPlaneError,
    InvalidRequest,
    ModelNotFound,
    PermissionDenied,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.core.scope import Right
from control_plane.embeddings.domain.text_model import TextModel
from control_plane.embeddings.domain.text_model_config import TEXT_MODEL_REQUIREMENTS, read_text_model
from control_plane.inference.dispatch import Dispatch
from control_plane.models.fingerprints import Fingerprints
from control_plane.protocols.http1 import HttpRequest

_log = logging.getLogger(__name__)

_REQUIRE_S = 5.0
"""Seconds for which a caller that hands in work for later waits to hear whether its model is one."""
_KEPT_S = 2.0
"""Lifetime in seconds of an entry without a fingerprint: others may load the model anew without telling
us."""

_MAX_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class _Known:
    """Cache entry of one model name; `model` is None where the name embeds no texts."""

    model: TextModel | None
    fingerprint: Fingerprint | None
    until_s: float


class TextModels:
    """Cache of model descriptions: which models embed texts, and the names of their tensors."""

    def __init__(
        self, dispatch: Dispatch, fingerprints: Fingerprints, access: Access, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._dispatch = dispatch
        self._access = access
        self._fingerprints = fingerprints
        self._now_s = now_s
        self._known = BoundedCache[tuple[str, str], _Known].of_entries(_MAX_ENTRIES)

    async def describe(self, name: str, version: str = "", *, timeout_s: float) -> TextModel:
        """The description of a text-embedding model, from the cache or from Triton.

        Raises:
            ModelNotFound: it is not loaded.
            InvalidRequest: it is no text-embedding model.
            UpstreamUnavailable, UpstreamFailed, DeadlineExceeded.
        """
        # Read before the configuration: if the model is loaded anew in between, the entry is stale at once.
        fingerprint = self._fingerprints.get(name)
        known = self._known.get((name, version))
        if known is None or known.fingerprint is not fingerprint or (fingerprint is None and self._now_s() >= known.until_s):
            known = _Known(await self._ask(name, version, timeout_s), fingerprint, self._now_s() + _KEPT_S)
            self._known.forget((name, version))
            self._known.keep((name, version), known)
        if known.model is None:
            raise InvalidRequest(f"model {name!r} is no text-embedding model: {TEXT_MODEL_REQUIREMENTS}", field="model")
        return known.model

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

    async def _ask(self, name: str, version: str, timeout_s: float) -> TextModel | None:
        request = HttpRequest(b"GET", b"%b/config" % path_of_model(name, version))
        server = await self._dispatch.reading(name, timeout_s=timeout_s)
        answer = await server.http.send(request, timeout_s=timeout_s)
        if answer.status in (400, 404):  # Triton answers some GET calls about an unknown model with 400
            raise ModelNotFound(f"the model {name!r} does not exist, or is not loaded")
        if answer.status == 503:
            raise UpstreamUnavailable(f"model {name!r} is not ready; try again shortly")
        if answer.status != 200:
            raise UpstreamFailed(f"Triton does not say what model {name!r} is: status {answer.status}")
        return read_text_model(answer.body)


def path_of_model(name: str, version: str) -> bytes:
    """The HTTP path of a model version, to which Triton's calls append `/infer` or `/config`."""
    return f"/v2/models/{name}/versions/{version}".encode() if version else f"/v2/models/{name}".encode()
