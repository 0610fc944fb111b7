"""Adoption of a Triton that has just been connected to: makes sure that this node alone loads there, and what.

Nothing says how a Triton was started, so it is tried: what is made in the repository must be in Triton's index;
an unload must not be refused, as it is in the modes `none` and `poll`; calls without the secret must be. What is
loaded then, by an earlier node or by flags of Triton's, is unloaded: nobody knows what it is.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from control_plane.core.endpoints import Endpoints
from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed, StartupError, UpstreamUnavailable
from control_plane.core.model import ModelState
from control_plane.triton.adopted.control_lock import RESTRICTED, flags_missing
from control_plane.triton.ports import Upstream

_log = logging.getLogger(__name__)

_NOT_EXPLICIT = "explicit model load / unload is not allowed"
"""What Triton says to a load or unload in the modes `none` and `poll` (server 24.10, with UNAVAILABLE)."""

_CALL_S = 10.0
_POLL_S = 0.1


@dataclass(slots=True)
class Adoption:
    """Adopter of the Triton at these endpoints, which should load from `repository`."""

    endpoints: Endpoints
    repository: Path
    locked: Callable[[bool], None]
    """Told whether others than this node may load there."""
    restore: Callable[[Upstream], Awaitable[None]]
    """Called once the Triton is this node's, and empty."""
    unload_timeout_s: float = 300.0
    _said: str = ""

    async def __call__(self, upstream: Upstream) -> None:
        """Adopt the Triton. Raises StartupError: it cannot be, and why; UpstreamUnavailable."""
        try:
            await self._require_ours(upstream)
            why = await self._why_open()
            if why and why != self._said:
                _log.warning("nothing that Triton answers is cached, since others may load models there: %s", why)
            self._said = why
            self.locked(not why)
            await self._empty(upstream)
        except UpstreamUnavailable as exc:
            if RESTRICTED in str(exc):
                raise StartupError(f"Triton at {self.endpoints.grpc} refuses the secret of --attach-secret-file: {exc}") from exc
            raise
        await self.restore(upstream)

    async def _require_ours(self, upstream: Upstream) -> None:
        """Raise StartupError unless it loads from our folder, in explicit mode."""
        name = f"tidegate-{secrets.token_hex(8)}"
        probe, place = self.repository / name, self.endpoints.grpc
        try:
            await asyncio.to_thread(probe.mkdir)
        except OSError as exc:
            raise StartupError(f"{self.repository} cannot be written: {exc.strerror}") from exc
        try:
            index = await upstream.control.index()
        finally:
            with suppress(OSError):
                await asyncio.to_thread(probe.rmdir)
        if name not in {line.name for line in index}:
            raise StartupError(
                f"Triton at {place} does not load from this node's {self.repository}: start it with --model-repository={self.repository}, "
                "and have that be the same folder for both"
            )
        try:
            await upstream.control.unload(name, timeout_s=_CALL_S)
        except UpstreamUnavailable as exc:
            if _NOT_EXPLICIT in str(exc):
                raise StartupError(f"Triton at {place} lets nobody load models: start it with --model-control-mode=explicit") from exc
            raise
        except ControlPlaneError:
            pass  # it was looked for, so that mode is explicit

    async def _why_open(self) -> str:
        """Say how others than this node could load models; empty if they cannot."""
        if not self.endpoints.control_secret:
            return "it has no secret; start it with --grpc-restricted-protocol and --http-restricted-api, and name --attach-secret-file"
        missing = await flags_missing(self.endpoints)
        return f"its calls for models need no secret; start it with {' and '.join(missing)}" if missing else ""

    async def _empty(self, upstream: Upstream) -> None:
        """Unload everything, and return when nothing is loaded; requests in flight finish."""
        asked = set[str]()
        try:
            async with asyncio.timeout(self.unload_timeout_s):
                while loaded := await _loaded(upstream):
                    if not asked:
                        _log.info("unloading %s, of which nobody knows what they are", ", ".join(loaded))
                    asked.update(loaded)
                    for name in loaded:
                        with suppress(ModelLoadFailed, DeadlineExceeded):  # one that is loading may have to end that first
                            await upstream.control.unload(name, timeout_s=_CALL_S)
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise StartupError(f"Triton at {self.endpoints.grpc} goes on loading what others asked for: {', '.join(asked)}") from None


async def _loaded(upstream: Upstream) -> list[str]:
    """The names of the models that are loaded, or being loaded, in order."""
    return sorted({line.name for line in await upstream.control.index() if line.state in (ModelState.READY, ModelState.LOADING)})
