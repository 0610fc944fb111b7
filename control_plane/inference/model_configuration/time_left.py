"""Tells which models are told how much time each request has left, so that they need not compute what nobody waits for.

Only those whose configuration says so: another model may take a parameter that it does not know for one of its own. Called by
`inference/inference` and `embeddings/embeddings`, once a request has its slot.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from control_plane.admission.permit import Permit
from control_plane.core.errors import ControlPlaneError
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.inference.domain.time_left import wants_time_left
from control_plane.inference.model_configuration.model_configs import ModelConfigs
from control_plane.models.fingerprints import Fingerprints

_ASK_TIMEOUT_S = 1.0
"""Longest wait of a request for what its model's configuration says."""
_ASK_AGAIN_S = 2.0
"""Time for which no configuration is asked for after one was not to be had."""


class TimeLeft:
    """Table of the loaded models that want to know how much time a request has left."""

    def __init__(
        self,
        dispatch: Dispatch,
        fingerprints: Fingerprints,
        *,
        is_loaded: Callable[[str], bool],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_loaded` says of a model whether it needs no load, as asking it would lead to one; `now_s` is the loop's time."""
        self._configs = ModelConfigs(dispatch, fingerprints, wants_time_left, now_s=now_s)
        self._is_loaded = is_loaded
        self._now_s = now_s
        self._ask_from_s = float("-inf")

    def may_be_wanted(self, model: str) -> bool:
        """Whether the model is not known to do without."""
        return self._configs.known(model) is not False

    async def tell(self, permit: Permit, model: str, timeout_s: float) -> float:
        """Have the model told of the request that has this slot, if it wants that; return what is left of `timeout_s`."""
        wants, began_s = self._configs.known(model), self._now_s()
        if wants is None and began_s >= self._ask_from_s and self._is_loaded(model):
            try:
                wants = await self._configs.get(model, timeout_s=min(timeout_s, _ASK_TIMEOUT_S))
            except ControlPlaneError:
                self._ask_from_s = self._now_s() + _ASK_AGAIN_S
            timeout_s -= self._now_s() - began_s
        permit.tells_time_left = wants is True
        return timeout_s
