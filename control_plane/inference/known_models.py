"""Names of models that exist, as far as this process knows: requests are counted, queued, metered and logged by these and by no others.

Callers can make up any number of names. A name is known by what a fleet has described, by the index of the one Triton, which is read
every few seconds and soon after a name that is not in it, or by an answer: Triton gives none for what is not there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import MODEL_NAME, UNKNOWN_MODEL
from control_plane.triton.ports import ModelControl
from control_plane.triton.servers import Servers

_log = logging.getLogger(__name__)

_READ_EVERY_S = 5.0
_LEAST_S = 1.0
"""Between two looks, however many names are missed."""


class KnownModels:
    """Set of the names of existing models, of one process."""

    def __init__(self, servers: Servers, *, is_described: Callable[[str], bool] | None = None) -> None:
        """`is_described` tells which models a fleet has; None: there is one Triton, whose index `run` reads."""
        self._servers = servers
        self._is_described = is_described
        self._listed: set[str] = set()
        self._answered: set[str] = set()
        """Since the index was last asked for."""
        self._missed = asyncio.Event()

    def __contains__(self, name: object) -> bool:
        if self._is_described is not None:
            return isinstance(name, str) and self._is_described(name)
        return name in self._listed or name in self._answered

    def name_of(self, name: str) -> str:
        """`name`, if there is such a model; else what stands for all others."""
        if name in self._listed or name in self._answered or name in self:
            return name
        if name:
            self._missed.set()
        return UNKNOWN_MODEL

    def answered(self, name: str) -> None:
        """A model of that name has answered a request, so there is one."""
        if name and name not in self._listed and self._is_described is None:
            self._answered.add(name)

    async def run(self) -> None:
        """Read the index every few seconds until cancelled; returns at once in a fleet."""
        while self._is_described is None:
            await self.refresh()
            await asyncio.sleep(_LEAST_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(_READ_EVERY_S - _LEAST_S):
                    await self._missed.wait()

    async def refresh(self) -> None:
        """Read the index now; what was known stays if it cannot be read."""
        if self._is_described is not None:
            return
        self._missed.clear()
        before, self._answered = self._answered, set()
        try:
            names = await _names_at(self._servers.pick().control)
            self._listed, before = {name for name in names if MODEL_NAME.fullmatch(name)}, set()
        except ControlPlaneError as exc:
            _log.debug("which models there are was not read: %s", exc)  # Triton is down, which others say aloud
            self._missed.set()
        finally:
            self._answered |= before


async def _names_at(control: ModelControl) -> set[str]:
    """Of a Triton that shows its index to nobody, those that are loaded. Raises ControlPlaneError."""
    try:
        return {line.name for line in await control.index()}
    except ControlPlaneError:
        return set(await control.compute_times())
