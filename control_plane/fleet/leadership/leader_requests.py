"""Leader forwarding: the processes that share a fleet send its leader their load reports, and ask it for replicas that requests need.

No answer is sent back: they see the result in Triton's index, which they read more often while they wait. `app/` runs one for each
process; `fleet/loading/replica_loader` calls `request_replica`, and `fleet/loading/replica_repairs` calls `request_repair`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from control_plane.core.errors import StoreUnavailable
from control_plane.fleet.leadership.reports import ReportBuilder, ReportCollector
from control_plane.fleet.ports import LeaderChannel
from control_plane.fleet.view.state import FleetState

_log = logging.getLogger(__name__)

_AGAIN_S = 0.25
"""Time after which a process that still waits for a model asks again: the leader may have changed, or may
have had no room for the model."""

_REPORT_S = 0.25
"""Time between two load reports. What has ended counts as under way until the next one, so the leader does
not unload it meanwhile."""
_COALESCE_S = 0.005
"""Time to collect models that are asked for together into one report."""

_TAKE_S = 1.0
"""Longest wait of the leader for reports, after which it expires those of silent processes."""
_RETRY_S = 0.5
"""Time before another try when the store could not be reached."""

_LOOK_S = 0.04
"""Time between two looks while a process waits. A look costs Triton about a millisecond; what is ready is
seen up to so much later."""
_AWAITED_S = 1.0
"""A process that still waits for a model which is not being loaded has asked for it within this time."""


class LeaderForwarding:
    """Forwards requests for models, and load reports, to the fleet's leader; receives them where this process
    is the leader."""

    def __init__(
        self,
        channel: LeaderChannel,
        state: FleetState,
        *,
        own: ReportBuilder,
        others: ReportCollector | None = None,
        is_leader: Callable[[], bool],
    ) -> None:
        """`others` collects reports; it is given where this process may become the leader."""
        self._channel = channel
        self._state = state
        self._own = own
        self._others = others
        self._is_leader = is_leader
        self._asked: dict[tuple[str, str | None], tuple[float, int]] = {}
        """(model, pool) -> when it was asked for, and how many ready replicas this process saw then."""
        self._to_ask = asyncio.Event()
        self._to_look = asyncio.Event()

    def request_replica(self, model: str, pool: str | None = None) -> bool:
        """Ask the leader to load one more replica of a model; False if this process is the leader and must do
        it itself."""
        if self._is_leader():
            return False
        now_s = self._state.now_s()
        asked_s, _ = self._asked.get((model, pool), (float("-inf"), 0))
        if now_s - asked_s >= _AGAIN_S:
            self._asked[model, pool] = (now_s, len(self._state.fleet.ready_replicas(model)))
            self._own.want(model, pool)
            self._to_ask.set()
            self._to_look.set()
        return True

    def request_repair(self, server: str, model: str) -> bool:
        """Ask the leader to load a replica anew whose stub has died; False if this process is the leader."""
        if self._is_leader():
            return False
        self._own.request_repair(server, model)
        return True

    async def run(self) -> None:
        """Send reports, or receive them while this process is the leader, until cancelled."""
        while True:
            try:
                await (self._hear() if self._is_leader() else self._tell())
            except StoreUnavailable as exc:
                # Not a warning: each request that waits for the leader in vain says so itself.
                _log.debug("the fleet's leader cannot be reached: %s", exc)
                await asyncio.sleep(_RETRY_S)

    async def poll_while_waiting(self, look: Callable[[], Awaitable[None]]) -> None:
        """Call `look` again and again while anything that was asked for is missing, until cancelled."""
        while True:
            await self._to_look.wait()
            self._to_look.clear()
            # Only while something is missing: a look costs Triton a millisecond, and there are many gateways.
            while self._awaits():
                await look()
                await asyncio.sleep(_LOOK_S)

    async def _hear(self) -> None:
        """Receive reports as the leader."""
        self._own.drop()
        for report in await self._channel.receive(timeout_s=_TAKE_S):
            # This process may have sent a report just before it became the leader: its own use is counted
            # already.
            if self._others is not None and report.process != self._own.process:
                self._others.apply(report)
        if self._others is not None:
            self._others.expire()

    async def _tell(self) -> None:
        """Send one report to the leader, at once if a model is asked for."""
        if self._others is not None:
            # A process that is no longer the leader must not count what others now report to the next one.
            self._others.drop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_S):
                await self._to_ask.wait()
                # A burst asks for several models at once; they go in one report.
                await asyncio.sleep(_COALESCE_S)
        self._to_ask.clear()
        report = self._own.make()
        if report is not None:
            await self._channel.report(report)

    def _awaits(self) -> bool:
        """Whether anything that has been asked for lately is still missing."""
        self._asked = {key: each for key, each in self._asked.items() if self._is_awaited(key[0], *each)}
        return bool(self._asked)

    def _is_awaited(self, model: str, asked_s: float, ready_then: int) -> bool:
        fleet = self._state.fleet
        return len(fleet.ready_replicas(model)) <= ready_then and (fleet.is_loading(model) or self._state.now_s() - asked_s < _AWAITED_S)
