"""Recent events of a fleet: kept, counted, and logged if they concern servers or replicas that were lost. `tidegate fleet` and the
admin API show them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from control_plane.fleet.domain.counts import FleetCounts
from control_plane.fleet.domain.event import OF_SERVERS, FleetEvent, FleetEventKind

_log = logging.getLogger(__name__)

_MAX_EVENTS = 500
"""Events kept; older ones are dropped."""
_WORRYING = frozenset((FleetEventKind.DOWN, FleetEventKind.EJECTED, FleetEventKind.LOST, FleetEventKind.SILENT))


class FleetEvents:
    """Event log of one process: a ring buffer, newest last."""

    def __init__(self, counts: FleetCounts, *, today_s: Callable[[], float] = time.time, logs: bool = True) -> None:
        """`today_s` is seconds since 1970. Without `logs` events of servers are not logged, since another
        process logs the same ones; a replica is lost for one process only."""
        self.latest: deque[FleetEvent] = deque(maxlen=_MAX_EVENTS)
        self._counts = counts
        self._today_s = today_s
        self._logs = logs

    def record(self, kind: FleetEventKind, *, server: str, model: str = "", reason: str = "", seconds: float = 0.0) -> None:
        """Record an event that has happened now; `seconds` is how long it took."""
        event = FleetEvent(self._today_s(), kind, model, server, reason, seconds)
        self.latest.append(event)
        self._counts.count_event(event)
        if kind is FleetEventKind.LOST or (self._logs and kind in OF_SERVERS):
            what, fields = f"server {server}", {"server": server}
            if model:
                what, fields = f"model {model} on server {server}", {"model": model, "server": server}
            after = f" after {seconds:.1f} s" if seconds else ""
            level = logging.WARNING if kind in _WORRYING else logging.INFO
            _log.log(level, "%s is %s%s%s", what, kind.value, after, f": {reason}" if reason else "", extra=fields)
