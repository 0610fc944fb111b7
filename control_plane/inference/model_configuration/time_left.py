"""Tells which models are told how much time each request has left, so that they need not compute what nobody waits for.

Only those whose configuration says so: another model may take a parameter that it does not know for one of its own. Called by
`inference/inference` and `embeddings/embeddings`, once a request has its slot. No request waits for a configuration: one asks for it,
and those that come until it is known go on untold. Run by `app/data_plane`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from control_plane.admission.permit import Permit
from control_plane.concurrency.shared_task import outcome
from control_plane.concurrency.task_owner import TaskOwner
from control_plane.core.errors import ControlPlaneError
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.inference.domain.time_left import wants_time_left
from control_plane.inference.model_configuration.model_configs import ModelConfigs
from control_plane.models.fingerprints import Fingerprints

_log = logging.getLogger(__name__)

_ASK_TIMEOUT_S = 5.0
"""Longest wait for a model's configuration."""
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
        self._tasks = TaskOwner("models are not asked for their configurations")
        self._asked_of = set[str]()
        """Models whose configuration is being asked for: once, also where all come at once for a model that was just loaded."""

    async def run(self) -> None:
        """Ask for the configurations of which nothing is known, until cancelled."""
        await self._tasks.run()

    def may_be_wanted(self, model: str) -> bool:
        """Whether the model is not known to do without."""
        return self._configs.known(model) is not False

    def tell(self, permit: Permit, model: str) -> None:
        """Have the model told of the request that has this slot, if it is known to want that."""
        wants = self._configs.known(model)
        permit.tells_time_left = wants is True
        if wants is None and self._may_ask(model):
            self._asked_of.add(model)
            self._tasks.create_task(self._ask(model), name="time-left")

    def _may_ask(self, model: str) -> bool:
        return self._tasks.is_open and model not in self._asked_of and self._now_s() >= self._ask_from_s and self._is_loaded(model)

    async def _ask(self, model: str) -> None:
        try:
            found = await outcome(lambda: self._configs.get(model, timeout_s=_ASK_TIMEOUT_S))
        finally:
            self._asked_of.discard(model)
        if isinstance(found, Exception):
            self._ask_from_s = self._now_s() + _ASK_AGAIN_S
            if not isinstance(found, ControlPlaneError):
                _log.error("the configuration of model %r could not be asked for; this is a defect", model, exc_info=found)
