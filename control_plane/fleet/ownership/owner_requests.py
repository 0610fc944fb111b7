"""Processes that share a fleet tell its owner how they use it, and ask for the models that their requests want.

What comes of that they see in Triton's index, at which they look more often while they wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from control_plane.core.errors import StoreUnavailable
from control_plane.core.model import ModelState
from control_plane.fleet.ownership.reports import OthersReports, OwnReport
from control_plane.fleet.ports import OwnerLine
from control_plane.fleet.view.state import FleetState

_log = logging.getLogger(__name__)

_AGAIN_S = 0.25
"""A model is asked for again by who still waits for it: the owner may have changed, or may have had no room for it just then."""

_REPORT_S = 0.25
"""What a process has under way counts as under way for so long after it has ended: the owner does not unload it meanwhile."""
_COALESCE_S = 0.005
"""Models that are asked for together go in one report."""

_TAKE_S = 1.0
_RETRY_S = 0.5

_LOOK_S = 0.04
"""A look costs Triton about a millisecond, and what is waited for is seen so much later than it is ready."""
_AWAITED_S = 1.0
"""Who still waits for a model that is not being loaded has asked for it in so long."""


class Asking:
    """Reports and asks where this process is not the owner, and is told and asked where it is."""

    def __init__(
        self,
        line: OwnerLine,
        state: FleetState,
        *,
        own: OwnReport,
        others: OthersReports | None = None,
        is_owner: Callable[[], bool],
    ) -> None:
        """`others` where this process may be the owner."""
        self._line = line
        self._state = state
        self._own = own
        self._others = others
        self._is_owner = is_owner
        self._asked: dict[tuple[str, str | None], tuple[float, int]] = {}
        """When, and with how many ready copies."""
        self._to_ask = asyncio.Event()
        self._to_look = asyncio.Event()

    def ask(self, model: str, pool: str | None = None) -> bool:
        """Have the owner load it; False: that is this process."""
        if self._is_owner():
            return False
        now_s = self._state.now_s()
        asked_s, _ = self._asked.get((model, pool), (float("-inf"), 0))
        if now_s - asked_s >= _AGAIN_S:
            self._asked[model, pool] = (now_s, self._state.fleet.ready_copies(model))
            self._own.want(model, pool)
            self._to_ask.set()
            self._to_look.set()
        return True

    def tell_died(self, server: str, model: str) -> bool:
        """Have the owner load that copy anew; False: that is this process."""
        if self._is_owner():
            return False
        self._own.tell_died(server, model)
        return True

    async def run(self) -> None:
        """Tell the owner, or hear the others, until cancelled."""
        while True:
            try:
                await (self._hear() if self._is_owner() else self._tell())
            except StoreUnavailable as exc:
                _log.debug("the fleet's owner cannot be asked: %s", exc)  # those who wait for it say so
                await asyncio.sleep(_RETRY_S)

    async def look_while_waiting(self, look: Callable[[], Awaitable[None]]) -> None:
        """`look` at the fleet again and again while something that was asked for is not there, until cancelled."""
        while True:
            await self._to_look.wait()
            self._to_look.clear()
            while self._awaits():
                await look()
                await asyncio.sleep(_LOOK_S)

    async def _hear(self) -> None:
        self._own.drop()
        for report in await self._line.take(timeout_s=_TAKE_S):
            if self._others is not None and report.process != self._own.process:  # it may have become the owner since
                self._others.take(report)
        if self._others is not None:
            self._others.expire()

    async def _tell(self) -> None:
        if self._others is not None:
            self._others.drop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_S):
                await self._to_ask.wait()
                await asyncio.sleep(_COALESCE_S)
        self._to_ask.clear()
        report = self._own.make()
        if report is not None:
            await self._line.report(report)

    def _awaits(self) -> bool:
        """Whether anything that has been asked for lately is not there yet."""
        self._asked = {key: each for key, each in self._asked.items() if self._is_awaited(key[0], *each)}
        return bool(self._asked)

    def _is_awaited(self, model: str, asked_s: float, ready_then: int) -> bool:
        fleet = self._state.fleet
        is_loading = any(server.copies[model].state is ModelState.LOADING for server in fleet.holders.get(model, {}).values())
        return fleet.ready_copies(model) <= ready_then and (is_loading or self._state.now_s() - asked_s < _AWAITED_S)
