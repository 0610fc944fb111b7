"""Watches, in each process that sends requests to a fleet, for replicas that hang and for requests that are overdue at one replica while
others answer. The latter are recalled (`fleet/view/health/recalls`), and then sent to another replica.

`fleet/domain/health/overdue` and `triton/copy_silence` decide. `fleet/routing/dispatch` owns it; the fleet's service and each worker
run it.
"""

from __future__ import annotations

import asyncio

from control_plane.core.algorithms.silence import SilenceLimits
from control_plane.fleet.routing.hung_requests import HungRequests
from control_plane.fleet.routing.model_router import ModelRouter

_LIMITS = SilenceLimits()
_READ_TURNS = 4
"""Turns of the event loop after a wait: timers come before what has been received, which may be the answers."""


class OverdueWatch:
    """Watchdog of the requests in flight, every quarter of a second.

    A look counts only if this process's own loop was on time: after it was held up, answers lie unread.
    """

    def __init__(self, router: ModelRouter, hung: HungRequests) -> None:
        self._router = router
        self._hung = hung

    async def run(self) -> None:
        """Look until cancelled."""
        loop, was_late = asyncio.get_running_loop(), False
        while True:
            due_s = loop.time() + _LIMITS.interval_s
            await asyncio.sleep(_LIMITS.interval_s)
            is_late = loop.time() - due_s > _LIMITS.max_late_s
            for _ in range(_READ_TURNS):
                await asyncio.sleep(0)
            if not is_late and not was_late:
                self._router.look_for_overdue()
                await self._hung.look()
            was_late = is_late
