"""Health check of a Triton that a node runs: up when both the node and Triton itself say so.

Once it is up, requests go there whatever becomes of the node: Triton answers without it. It is down when Triton
itself is silent for long or gone, or when the node tells of another life of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from control_plane.core.errors import StartupError, UpstreamUnavailable
from control_plane.core.model import ModelVersion
from control_plane.node.domain.fence import Term
from control_plane.node.remote_node import RemoteNode
from control_plane.triton.http_opening import wait_for_http
from control_plane.triton.index_elsewhere import UpstreamWithIndex
from control_plane.triton.liveness_watch import LivenessWatch
from control_plane.triton.ports import Upstream
from control_plane.triton.server_state import ServerSlot

_log = logging.getLogger(__name__)

_POLL_S = 0.25
_LOST_AFTER_S = 10.0
"""Time after which a Triton that says nothing counts as lost, as in `triton/attachment`."""
_LAST_REQUESTS_S = 4.0
"""Time that a Triton takes at most to end, after it has finished the requests that it has."""


class NodeHealthCheck:
    """Health checker of one Triton with a node, over all lives of both."""

    def __init__(
        self,
        node: RemoteNode,
        *,
        connect: Callable[[], Upstream],
        servers: ServerSlot,
        term: Callable[[], Term | None],
        start_timeout_s: float | None,
    ) -> None:
        """`term` returns the right to change models, None where this process does not lead the fleet. With a
        `start_timeout_s` of None the server need not be up at start."""
        self._node = node
        self._connect = connect
        self._servers = servers
        self._term = term
        self._start_timeout_s = start_timeout_s

    async def run(self) -> None:
        """Report the server up and down until cancelled. Raises StartupError, in a group: it is not up within
        the start timeout."""
        async with asyncio.TaskGroup() as tasks:
            link = tasks.create_task(self._node.run(), name=f"node-{self._node.name}")
            timeout_s = self._start_timeout_s
            try:
                while True:
                    await self._live_once(timeout_s)
                    timeout_s = None
            finally:
                self._servers.down("the gateway is stopping")
                link.cancel()
                await asyncio.wait((link,))
                await self._node.forget_contents()

    async def _live_once(self, timeout_s: float | None) -> None:
        """Wait for a life of Triton, and return when it is over."""
        upstream = self._connect()
        try:
            life = await self._wait_until_live(upstream, timeout_s)
            self._servers.up(UpstreamWithIndex(upstream, self._index))
            await self._watched(upstream, life)
        finally:
            await upstream.close()

    async def _wait_until_live(self, upstream: Upstream, timeout_s: float | None) -> str:
        node = self._node
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if node.is_away:  # since the last look, perhaps: of a server that is down nothing is to be unknown
                        await node.forget_contents()
                    await node.wait_until(lambda: node.life != "")
                    life = node.life
                    if await upstream.control.is_live():
                        await wait_for_http(upstream)
                        if node.life == life:
                            return life
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as exc:
            why = node.why_away if node.life == "" else f"no live Triton answered at {upstream.endpoints.address}"
            raise StartupError(f"server {node.name} is not up within {timeout_s:g} s: {why}") from exc

    async def _index(self) -> list[ModelVersion]:
        """Read Triton's index through the node. The leader's look fences off those before it."""
        try:
            found = await self._node.index(self._term())
        except UpstreamUnavailable as exc:
            if self._node.is_connected and str(exc) != self._node.refusal:  # it is asked twice a second
                _log.warning("the node of server %s refuses this gateway: %s", self._node.name, exc)
                self._node.refusal = str(exc)
            raise
        self._node.refusal = ""
        return found

    async def _watched(self, upstream: Upstream, life: str) -> None:
        """Report this life of Triton as lost when it is over."""
        node, place = self._node, upstream.endpoints.address
        async with asyncio.TaskGroup() as tasks:
            watch = LivenessWatch(upstream.liveness, self._servers, name=f"at {place}", gives_up_after_s=_LOST_AFTER_S)
            silent = tasks.create_task(watch.run(), name=f"liveness-{node.name}")
            over = tasks.create_task(node.wait_until(lambda: self._why_over(life) != ""), name=f"life-{node.name}")
            await asyncio.wait((silent, over), return_when=asyncio.FIRST_COMPLETED)
            why_over = self._why_over(life)
            why = why_over or f"the Triton at {place} does not answer"
            self._servers.lost(why)
            _log.error("server %s is down: %s", node.name, why)
            if not why_over:
                node.reconnect()  # this very life may go on, of which the node has nothing new to say
            await node.forget_contents()
            # A Triton that is told to end finishes what it has; its connections are closed only then.
            if over.done() and node.life == "":
                await asyncio.wait((silent,), timeout=_LAST_REQUESTS_S)
            silent.cancel()
            over.cancel()

    def _why_over(self, life: str) -> str:
        """Return why this life of Triton is over or about to be; empty where nothing says so. A node that is only
        away says nothing: its Triton goes on."""
        if self._node.is_gone:
            return "its node has ended, and Triton with it"
        if not self._node.is_connected or self._node.life == life:
            return ""
        return "Triton was restarted" if self._node.life else self._node.why_away
