"""Which models are decoupled: Triton does not take those by ModelInfer, and on a stream they must be apart from the others."""

from __future__ import annotations

import time
from collections.abc import Callable

from control_plane.core.errors import ControlPlaneError
from control_plane.inference.inference import Dispatch
from control_plane.triton.ports import Upstream

_KEPT_S = 2.0
"""A model may be reloaded as one of the other kind."""

_MAX_KEPT = 10_000

_TIMEOUT_S = 30.0
"""Of the way to the only server, which says at once that it is down."""


class ModelKinds:
    """Asks Tritons, and remembers for a moment."""

    def __init__(self, dispatch: Dispatch, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._dispatch = dispatch
        self._now_s = now_s
        self._known: dict[str, tuple[bool, float]] = {}

    async def is_decoupled(self, model_name: str) -> bool | None:
        """None: no server that has it says so. That is no use of it, and nothing is loaded for it."""
        known = self._known.get(model_name)
        if known is not None and self._now_s() < known[1]:
            return known[0]
        for server in await self._servers_of(model_name):
            try:
                is_decoupled = await server.control.is_decoupled(model_name)
            except ControlPlaneError:
                continue
            if len(self._known) >= _MAX_KEPT:
                self._known.clear()
            self._known[model_name] = (is_decoupled, self._now_s() + _KEPT_S)
            return is_decoupled
        return None

    async def _servers_of(self, model_name: str) -> list[Upstream]:
        catalogue = self._dispatch.catalogue
        if catalogue is not None:
            return catalogue.servers_of(model_name)
        try:
            return [await self._dispatch.reading(model_name, timeout_s=_TIMEOUT_S)]
        except ControlPlaneError:
            return []
