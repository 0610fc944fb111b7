"""Bounds the cardinality of model names: only names of existing models become metric labels, queues and metering rows.

Callers can invent any number of names, and each would otherwise cost memory and a time series. A name counts as existing if
the fleet has a description of its model, if the repository index of the only Triton lists it (read every few seconds, and soon
after a request for an unlisted name), or if Triton has answered a request for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from control_plane.core.errors import ControlPlaneError, ModelNotFound
from control_plane.core.model import MODEL_NAME, UNKNOWN_MODEL
from control_plane.protocols.http1 import HttpRequest
from control_plane.triton.ports import ModelControl
from control_plane.triton.servers import Servers

_log = logging.getLogger(__name__)

_READ_EVERY_S = 5.0
_REQUIRE_S = 5.0
"""Seconds for which a caller that hands in work for later waits to hear whether there is its model."""
_MIN_READ_INTERVAL_S = 1.0
"""Shortest time between two reads of the index: a flood of made-up names must not become a flood of index
calls."""


class ModelNames:
    """Set of the names of existing models, as far as this process knows."""

    def __init__(self, servers: Servers, *, is_described: Callable[[str], bool] | None = None) -> None:
        """`is_described` says which models a fleet has; None: there is one Triton, whose index `run`
        reads."""
        self._servers = servers
        self._is_described = is_described
        self._listed: set[str] = set()
        self._answered: set[str] = set()
        """Names that have answered since the last read of the index began."""
        self._missed = asyncio.Event()

    def __contains__(self, name: object) -> bool:
        if self._is_described is not None:
            return isinstance(name, str) and self._is_described(name)
        return name in self._listed or name in self._answered

    def name_of(self, name: str) -> str:
        """`name` if such a model is known, else `UNKNOWN_MODEL`, which stands for all other names."""
        if name in self._listed or name in self._answered or name in self:
            return name
        if name:
            self._missed.set()
        return UNKNOWN_MODEL

    async def is_missing(self, name: str, *, timeout_s: float) -> bool:
        """Return whether there is no such model for certain, loaded or not: of a name that is not known the only Triton is
        asked, and one that says nothing now may have it.
        """
        if name in self or self._is_described is not None:
            return name not in self
        try:
            answer = await self._servers.pick().http.send(HttpRequest(b"GET", b"/v2/models/" + name.encode()), timeout_s=timeout_s)
        except ControlPlaneError:
            return False
        if answer.status == 200:
            self.answered(name)
        return answer.status in (400, 404)  # Triton answers some GET calls about an unknown model with 400

    async def require_any(self, names: Sequence[str]) -> None:
        """Require that there is a model of one of these names, loaded or not. Raises ModelNotFound, in Triton's words."""
        for name in names:
            if not await self.is_missing(name, timeout_s=_REQUIRE_S):
                return
        raise ModelNotFound(f"Request for unknown model: '{names[0]}' is not found")

    def answered(self, name: str) -> None:
        """Learn a name from an answer: a model of that name has answered a request, so it exists."""
        if name and name not in self._listed and self._is_described is None:
            self._answered.add(name)

    async def run(self) -> None:
        """Read the index every few seconds until cancelled; return at once in a fleet, which has descriptions
        instead."""
        while self._is_described is None:
            await self.refresh()
            await asyncio.sleep(_MIN_READ_INTERVAL_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(_READ_EVERY_S - _MIN_READ_INTERVAL_S):
                    await self._missed.wait()

    async def refresh(self) -> None:
        """Read the index now; the names known so far stay if it cannot be read."""
        if self._is_described is not None:
            return
        self._missed.clear()
        # Names that answer while the index is being read may be missing in it, so they go into a new set that
        # is kept.
        before, self._answered = self._answered, set()
        try:
            names = await _names_at(self._servers.pick().control)
            # A name is matched once, and not at each read of an index of thousands.
            self._listed, before = {name for name in names if name in self._listed or MODEL_NAME.fullmatch(name)}, set()
        except ControlPlaneError as exc:
            _log.debug("the repository index could not be read: %s", exc)  # debug: the supervisor warns that Triton is down
            self._missed.set()
        finally:
            self._answered |= before


async def _names_at(control: ModelControl) -> set[str]:
    """Names in Triton's repository index, or of its loaded models where the index is restricted.

    Raises ControlPlaneError.
    """
    try:
        return {line.name for line in await control.index()}
    except ControlPlaneError:
        return set(await control.compute_times())
