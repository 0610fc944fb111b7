"""One life of a worker process, as its parent knows it, and the watch for a worker that freezes.

`workers/parent/workers` has one of these for each worker and replaces it when the worker has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from control_plane.core.algorithms.silence import SilenceDetector, SilenceLimits
from control_plane.telemetry.request_counts import RequestCounts
from control_plane.workers.messages.from_workers import Sent
from control_plane.workers.messages.to_workers import Drain, WorkedOnElsewhere
from control_plane.workers.ports import WorkerProcess
from control_plane.workers.worked_on import worked_on

_log = logging.getLogger(__name__)

_FROZEN = SilenceLimits(interval_s=0.25, max_misses=6)
"""Silence after which a worker gets no new connections, which would wait in it: 1.5 s, and the interval before
them. It is not killed: what it has goes on if it does."""
_THAWED_DRAIN_S = 30.0
"""Seconds for a worker that was frozen to end what it has; then another one takes its place."""


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """Handle of one life of a worker: its process, and what it has told the parent."""

    process: WorkerProcess
    counts: RequestCounts = field(default_factory=RequestCounts)
    degraded: tuple[str, ...] = ()
    awaited: tuple[Sent, ...] = ()
    given_up: tuple[Sent, ...] = ()
    streaming: tuple[tuple[str, str], ...] = ()
    told_worked_on: WorkedOnElsewhere = field(default_factory=lambda: worked_on(()))
    acknowledged: int = -1
    """Number of the newest fingerprints that the worker has acknowledged; before the first, it is not told to
    listen."""
    charges_collected: int = 0
    messages: int = 0
    silence: SilenceDetector = field(default_factory=lambda: SilenceDetector(_FROZEN))
    was_told_to_listen: bool = False
    is_listening: bool = False
    is_drained: bool = False

    async def watch(self, number: int, *, on_freeze: Callable[[], None]) -> None:
        """Take the ports from the worker if it freezes, and have it replaced if it comes back; until cancelled."""
        loop, interval_s = asyncio.get_running_loop(), _FROZEN.interval_s
        while True:
            before, due_s = self.messages, loop.time() + interval_s
            await asyncio.sleep(interval_s)
            if self.messages != before:
                if self.silence.heard(loop.time()):
                    _log.warning("worker %d runs again, after %.1f s, and is replaced", number, loop.time() - self.silence.since_s)
                    self.process.send(Drain(_THAWED_DRAIN_S))
            # By how late this process is itself: what holds up both is no silence of the worker's.
            elif self.is_listening and self.silence.missed(late_s=loop.time() - due_s):
                silent_s = loop.time() - self.silence.since_s
                _log.error("worker %d has said nothing for %.1f s: it gets no new connections", number, silent_s)
                self.is_listening = False
                self.process.stop_accepting()
                on_freeze()
