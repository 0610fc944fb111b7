"""Health check of an attached Triton, which somebody else runs (`--triton-url`, `--servers-file`); reports it
up and down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from control_plane.core.errors import StartupError
from control_plane.core.held_memory import HeldMemory
from control_plane.triton.http_opening import wait_for_http
from control_plane.triton.liveness_watch import LivenessWatch
from control_plane.triton.ports import Upstream
from control_plane.triton.server_state import ServerSlot

_log = logging.getLogger(__name__)

_POLL_S = 0.25
_LOST_AFTER_S = 10.0
"""Silence after which a Triton counts as lost, with all that it had loaded: what comes back later may be another
process. A shorter one may be a pause, after which everything is as before.
"""


class AttachedHealthCheck:
    """Health checker of an attached Triton, the counterpart of `triton/supervisor.Supervisor` for an embedded
    one.
    """

    def __init__(
        self, *, upstream: Upstream, servers: ServerSlot, restore: Callable[[Upstream], Awaitable[object]], start_timeout_s: float | None
    ) -> None:
        """With a `start_timeout_s` of None the server need not be up at start, and is waited for without
        limit.
        """
        self._upstream = upstream
        self._servers = servers
        self._restore = restore
        self._start_timeout_s = start_timeout_s

    def held_memory(self) -> HeldMemory | None:
        """Return None: an attached Triton may run on another machine."""
        return None

    async def run(self) -> None:
        """Report the server up and down until cancelled. Raises StartupError: Triton is not live within the
        start timeout.
        """
        place = self._upstream.endpoints.address
        try:
            await self._wait_until_live(self._start_timeout_s)
            while True:
                await self._restore(self._upstream)
                self._servers.up(self._upstream)
                watch = LivenessWatch(self._upstream.liveness, self._servers, name=f"at {place}", gives_up_after_s=_LOST_AFTER_S)
                await watch.run()
                self._servers.lost(f"the attached Triton at {place} does not answer")
                _log.error("the attached Triton at %s does not answer", place)
                await self._wait_until_live(None)
                _log.info("the attached Triton at %s answers again", place)
        finally:
            self._servers.down("the gateway is stopping")
            await self._upstream.close()

    async def _wait_until_live(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._upstream.control.is_live():
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as exc:
            place = self._upstream.endpoints.address
            raise StartupError(f"no live Triton answered at --triton-url ({place}) within {timeout_s:g} s; is it running there?") from exc
        await wait_for_http(self._upstream)
