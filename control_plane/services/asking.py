"""Processes that share a fleet ask its owner for the models that their requests want; what comes of it they see in Triton's index."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from control_plane.domain.errors import StoreUnavailable
from control_plane.ports import OwnerLine
from control_plane.services.ownership import Ownership

_log = logging.getLogger(__name__)

_AGAIN_S = 1.0
"""A model is asked for again by who still waits for it: the owner may have changed."""

_TAKE_S = 1.0
_RETRY_S = 0.5


class Asking:
    """Asks where this process is not the owner, and is asked where it is."""

    def __init__(self, line: OwnerLine, ownership: Ownership, *, now_s: Callable[[], float]) -> None:
        self._line = line
        self._ownership = ownership
        self._now_s = now_s
        self._asked_s: dict[str, float] = {}
        self._to_ask: dict[str, None] = {}
        self._wakes = asyncio.Event()

    def ask(self, model: str) -> bool:
        """Have the owner load it; False: that is this process."""
        if self._ownership.is_owner:
            return False
        if self._now_s() - self._asked_s.get(model, float("-inf")) >= _AGAIN_S:
            self._asked_s[model] = self._now_s()
            self._to_ask[model] = None
            self._wakes.set()
        return True

    async def run(self, want: Callable[[str], None]) -> None:
        """Pass on what is asked for here, and `want` what others ask for, until cancelled."""
        while True:
            try:
                if self._ownership.is_owner:
                    for model in await self._line.take(timeout_s=_TAKE_S):
                        want(model)
                else:
                    await self._pass_on()
            except StoreUnavailable as exc:
                _log.debug("the fleet's owner cannot be asked: %s", exc)  # those who wait for it say so
                await asyncio.sleep(_RETRY_S)

    async def _pass_on(self) -> None:
        try:
            async with asyncio.timeout(_TAKE_S):
                await self._wakes.wait()
        except TimeoutError:
            return
        self._wakes.clear()
        models, self._to_ask = self._to_ask, {}
        await self._line.ask(models)
