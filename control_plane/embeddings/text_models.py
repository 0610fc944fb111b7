"""Finds out which models embed texts, by their configurations.

Called by `embeddings` for each call and by `frontends/openai` for its list of models.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from control_plane.auth.access import Access
from control_plane.core.errors import ControlPlaneError, InvalidRequest, ModelNotFound
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.embeddings.domain.text_model import TextModel
from control_plane.embeddings.domain.text_model_config import TEXT_MODEL_REQUIREMENTS, read_text_model
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.inference.model_configuration.models_of_kind import ModelsOfKind
from control_plane.models.fingerprints import Fingerprints

_log = logging.getLogger(__name__)

_REQUIRE_S = 5.0
"""Seconds for which a caller that hands in work for later waits to hear whether its model is one."""


class TextModels(ModelsOfKind[TextModel]):
    """Descriptions of models: which of them embed texts, and the names of their tensors."""

    def __init__(
        self, dispatch: Dispatch, fingerprints: Fingerprints, access: Access, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        refusal = f"no text-embedding model: {TEXT_MODEL_REQUIREMENTS}"
        super().__init__(dispatch, fingerprints, access, read_text_model, refusal=refusal, may_be_sharded=True, now_s=now_s)

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
